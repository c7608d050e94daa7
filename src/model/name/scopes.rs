//! What a token permits: words, each for all names or for those that match a pattern.

use super::{Name, Pattern};

/// Who a token was issued to: the SHA-256 of its `sub`.
pub type Subject = [u8; 32];

/// The words of the `scope` claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    Produce,
    Consume,
    Group,
    Admin,
    Operator,
}

impl Word {
    pub const ALL: &'static [Word] =
        &[Word::Produce, Word::Consume, Word::Group, Word::Admin, Word::Operator];

    pub fn as_str(self) -> &'static str {
        match self {
            Word::Produce => "produce",
            Word::Consume => "consume",
            Word::Group => "group",
            Word::Admin => "admin",
            Word::Operator => "operator",
        }
    }
}

const PRODUCE: &[Word] = &[Word::Produce];
const GROUP: &[Word] = &[Word::Group];
const OPERATOR: &[Word] = &[Word::Operator];

/// The names that a word of a token covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Coverage {
    #[default]
    All,
    Matching(Vec<Pattern>),
}

impl Coverage {
    pub fn covers(&self, name: &Name) -> bool {
        match self {
            Coverage::All => true,
            Coverage::Matching(patterns) => patterns.iter().any(|pattern| pattern.covers(name)),
        }
    }
}

/// Whose a session is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SessionOwner {
    pub transactional_id: Option<Name>,
    /// Of a session without a name: the subject that opened it first.
    pub opened_by: Option<Subject>,
}

/// What a token must cover to handle a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// None: it has no session, or one that has expired.
    pub session: Option<SessionOwner>,
    /// The topics it appends to.
    pub topics: Vec<Name>,
    /// The groups whose offsets it is to commit.
    pub groups: Vec<Name>,
}

/// The permissions of a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scopes {
    words: Vec<(Word, Option<Pattern>)>,
    subject: Option<Subject>,
}

impl Scopes {
    /// Every word, for all names.
    pub fn all() -> Self {
        Self { words: Word::ALL.iter().map(|word| (*word, None)).collect(), subject: None }
    }

    /// Parses a `scope` claim; unknown words belong to other services and are ignored.
    pub fn parse(text: &str, subject: Option<Subject>) -> Self {
        Self { words: text.split_ascii_whitespace().filter_map(scope).collect(), subject }
    }

    /// What is left of it with these words only.
    pub fn only(mut self, words: &[Word]) -> Self {
        self.words.retain(|(word, _)| words.contains(word));
        self
    }

    /// Whether it has one of these words, for any name.
    pub fn has(&self, any_of: &[Word]) -> bool {
        self.words.iter().any(|(word, _)| any_of.contains(word))
    }

    /// Whether it has one of these words for all names: a word with a pattern does not count.
    pub fn has_whole(&self, any_of: &[Word]) -> bool {
        self.words.iter().any(|(word, pattern)| any_of.contains(word) && pattern.is_none())
    }

    /// Whether it has one of these words for this name.
    pub fn covers(&self, any_of: &[Word], name: &Name) -> bool {
        self.words.iter().any(|(word, pattern)| {
            any_of.contains(word) && pattern.as_ref().is_none_or(|pattern| pattern.covers(name))
        })
    }

    /// The names that it has this word for.
    pub fn coverage(&self, word: Word) -> Coverage {
        if self.has_whole(&[word]) {
            return Coverage::All;
        }
        let of_word = self.words.iter().filter(|(known, _)| *known == word);
        Coverage::Matching(of_word.filter_map(|(_, pattern)| pattern.clone()).collect())
    }

    /// Whether it covers all topics and sessions that a producer may have.
    pub fn produces_everywhere(&self) -> bool {
        self.has_whole(PRODUCE)
    }

    /// Whether it covers all groups.
    pub fn covers_all_groups(&self) -> bool {
        self.has_whole(GROUP)
    }

    /// The owner of a session without a name that is opened now; none: it may not be opened.
    pub fn owner_of_nameless(&self) -> Option<SessionOwner> {
        let may_open = self.produces_everywhere() || self.has(PRODUCE) && self.subject.is_some();
        may_open.then_some(SessionOwner { transactional_id: None, opened_by: self.subject })
    }

    /// Whether it covers a session: by its name, else by who opened it.
    pub fn covers_session(&self, owner: &SessionOwner) -> bool {
        match &owner.transactional_id {
            Some(name) => self.covers(PRODUCE, name),
            None => {
                let is_opener = self.subject.is_some() && self.subject == owner.opened_by;
                self.produces_everywhere() || self.has(PRODUCE) && is_opener
            }
        }
    }

    /// Whether there is no transaction that it does not cover.
    pub fn covers_all_transactions(&self) -> bool {
        self.produces_everywhere() && self.covers_all_groups()
    }

    /// The word that does not cover all of a transaction, if there is one.
    pub fn lacks(&self, reach: &Reach) -> Option<Word> {
        let sessions = reach.session.iter().all(|owner| self.covers_session(owner));
        if !sessions || !reach.topics.iter().all(|topic| self.covers(PRODUCE, topic)) {
            return Some(Word::Produce);
        }
        let groups = reach.groups.iter().all(|group| self.covers(GROUP, group));
        (!groups).then_some(Word::Group)
    }

    /// Whether it may see every transaction, as a client or as an operator.
    pub fn sees_all_transactions(&self) -> bool {
        self.has_whole(OPERATOR) || self.covers_all_transactions()
    }
}

/// `produce` or `produce:orders.*`.
fn scope(text: &str) -> Option<(Word, Option<Pattern>)> {
    let (word, pattern) = match text.split_once(':') {
        Some((_, "")) => return None,
        // no name has one, and PostgreSQL's text neither
        Some((_, pattern)) if pattern.contains('\0') => return None,
        Some((word, pattern)) => (word, Some(Pattern::new(pattern))),
        None => (text, None),
    };
    let word = Word::ALL.iter().find(|known| known.as_str() == word)?;
    Some((*word, pattern))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANNA: Subject = [1; 32];
    const BERT: Subject = [2; 32];

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    fn owner(transactional_id: &str, opened_by: Option<Subject>) -> SessionOwner {
        let transactional_id = Some(transactional_id).filter(|text| !text.is_empty());
        SessionOwner { transactional_id: transactional_id.map(name), opened_by }
    }

    #[test]
    fn sessions_by_name_or_by_who_opened_them() {
        // scope, subject; transactional id, opened by; covered
        let table = [
            ("produce", None, "pay", None, true),
            ("produce:pay*", None, "pay-1", None, true),
            ("produce:x produce:pay", None, "pay", None, true),
            ("produce:pay", None, "pay-1", None, false),
            ("consume admin group operator", Some(ANNA), "pay", Some(ANNA), false),
            // a name decides alone
            ("produce:x", Some(ANNA), "pay", Some(ANNA), false),
            ("produce", None, "", Some(ANNA), true),
            ("produce", Some(BERT), "", Some(ANNA), true),
            ("produce", None, "", None, true),
            ("produce:x", Some(ANNA), "", Some(ANNA), true),
            ("produce:x", Some(BERT), "", Some(ANNA), false),
            ("produce:*", None, "", Some(ANNA), false),
            ("produce:*", None, "", None, false),
            ("produce:*", Some(ANNA), "", None, false),
            ("consume", Some(ANNA), "", Some(ANNA), false),
        ];
        for (scope, subject, id, opened_by, covered) in table {
            let found = Scopes::parse(scope, subject).covers_session(&owner(id, opened_by));
            assert_eq!(found, covered, "{scope} {subject:?}: {id} {opened_by:?}");
        }
    }

    #[test]
    fn what_a_word_covers() {
        let table = [
            ("consume", "a", true),
            ("consume:x consume", "a", true),
            ("consume:x consume:a*", "a.1", true),
            ("consume:x produce", "a", false),
            ("", "a", false),
        ];
        for (scope, topic, covered) in table {
            let coverage = Scopes::parse(scope, None).coverage(Word::Consume);
            assert_eq!(coverage.covers(&name(topic)), covered, "{scope} {topic}");
        }
    }

    #[test]
    fn who_opens_without_a_name() {
        let table = [
            ("produce", None, Some(None)),
            ("produce", Some(ANNA), Some(Some(ANNA))),
            ("produce:x", Some(ANNA), Some(Some(ANNA))),
            ("produce:x", None, None),
            ("produce:*", None, None),
            ("consume", Some(ANNA), None),
        ];
        for (scope, subject, opened_by) in table {
            let opened = Scopes::parse(scope, subject).owner_of_nameless();
            assert_eq!(opened.map(|owner| owner.opened_by), opened_by, "{scope}");
        }
    }

    #[test]
    fn transactions_by_all_they_reach() {
        let reach = |session: Option<SessionOwner>, topics: &[&str], groups: &[&str]| {
            let names = |names: &[&str]| names.iter().map(|text| name(text)).collect();
            Reach { session, topics: names(topics), groups: names(groups) }
        };
        let full = reach(Some(owner("pay", None)), &["a.1", "b"], &["g"]);
        let table = [
            ("produce group", full.clone(), None),
            ("produce:a.* produce:b produce:pay group:g", full.clone(), None),
            ("produce", full.clone(), Some(Word::Group)),
            ("produce group:h", full.clone(), Some(Word::Group)),
            ("produce:a.* produce:pay group", full.clone(), Some(Word::Produce)),
            ("produce:a.* produce:b group", full.clone(), Some(Word::Produce)),
            ("consume:b produce:a.* produce:pay group", full, Some(Word::Produce)),
            ("produce:x", reach(None, &[], &[]), None),
            ("produce:x", reach(Some(SessionOwner::default()), &[], &[]), Some(Word::Produce)),
            ("group", reach(None, &[], &["g"]), None),
        ];
        for (scope, reach, lacks) in table {
            assert_eq!(Scopes::parse(scope, None).lacks(&reach), lacks, "{scope} {reach:?}");
        }
        assert!(Scopes::all().covers_all_transactions());
        for scope in ["produce", "group", "produce:* group", "produce group:*"] {
            assert!(!Scopes::parse(scope, None).covers_all_transactions(), "{scope}");
        }
        assert!(Scopes::parse("operator", None).sees_all_transactions());
        assert!(!Scopes::parse("operator:x produce", None).sees_all_transactions());
    }
}
