//! Properties: what holds for any record, and that no bytes bring the parser down.

use proptest::{collection::vec, prelude::*, sample::select};

use super::{
    Batch, Envelope,
    tests::{TRACE, array, batch_of, json, ndjson, refused},
};

#[test]
fn no_depth_of_nesting_brings_the_server_down() {
    let deep = |open: &str, close: &str| open.repeat(100_000) + "1" + &close.repeat(100_000);
    let run = move || {
        for value in [deep("[", "]"), deep("{\"a\":", "}"), deep("[{\"a\":", "}]")] {
            for body in [
                value.clone(),
                format!("{{\"value\":{value}}}"),
                format!("{{\"records\":[{{\"value\":{value}}}]}}"),
                format!("{{\"records\":{value}}}"),
                format!("{{\"epoch\":{value}}}"),
                format!("{{\"unknown\":{value}}}"),
                format!("{{\"records\":[{value}]}}"),
                format!("{{\"records\":[{{\"key\":{value}}}]}}"),
                format!("{{\"records\":[{{\"timestamp\":{value}}}]}}"),
                format!("{{\"records\":[{{\"unknown\":{value}}}]}}"),
                format!("{{\"records\":[{{\"headers\":{value}}}]}}"),
                format!("{{\"records\":[{{\"headers\":{{\"a\":{value}}}}}]}}"),
            ] {
                json(&body).unwrap_err();
                json(&body[..body.len() / 2]).unwrap_err();
                ndjson(&body).unwrap_err();
                array(&body).unwrap_err();
            }
            assert_eq!(
                ndjson(&format!("{{\"offset\":{value},\"value\":1}}")).unwrap(),
                batch_of("{\"value\":1}")
            );
        }
    };
    // On a stack that recursion would soon use up.
    std::thread::Builder::new().stack_size(256 << 10).spawn(run).unwrap().join().unwrap();
}

#[test]
fn many_headers_are_no_quadratic_work() {
    let headers: Vec<_> = (0..200_000).map(|i| format!("\"{}\":\"\"", i % 199_999)).collect();
    let body = format!("{{\"value\":1,\"headers\":{{{}}}}}", headers.join(","));
    refused(ndjson(&body), "/records/0/headers/0", "given twice");
}

/// A JSON value as its tokens, so that every digit and escape is kept.
#[derive(Clone, Debug)]
enum Tree {
    Token(String),
    Array(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

impl Tree {
    fn tokens(&self, out: &mut Vec<String>) {
        let (open, close, items): (_, _, Vec<(Option<&String>, &Tree)>) = match self {
            Tree::Token(token) => return out.push(token.clone()),
            Tree::Array(items) => ("[", "]", items.iter().map(|item| (None, item)).collect()),
            Tree::Object(items) => ("{", "}", items.iter().map(|(k, v)| (Some(k), v)).collect()),
        };
        out.push(open.to_owned());
        for (i, (key, item)) in items.into_iter().enumerate() {
            out.extend((i > 0).then(|| ",".to_owned()));
            out.extend(key.into_iter().flat_map(|key| [key.clone(), ":".to_owned()]));
            item.tokens(out);
        }
        out.push(close.to_owned());
    }
}

const PIECES: &[&str] = &[
    "\\ud800",
    "\\udc00",
    "\\ud83d\\ude00",
    "a",
    " ",
    "  ",
    "{",
    "]",
    ",",
    ":",
    "é",
    "😀",
    "\u{7f}",
    "\\\"",
    "\\\\",
    "\\/",
    "\\n",
    "\\u0000",
    "\\u0041",
];

/// Values made of these pieces of strings and numbers like this.
fn tree(pieces: &'static [&'static str], number: &'static str) -> impl Strategy<Value = Tree> {
    let string =
        move || vec(select(pieces), 0..8).prop_map(|pieces| format!("\"{}\"", pieces.concat()));
    let leaf = prop_oneof![
        select(&["null", "true", "false"][..]).prop_map(str::to_owned),
        number,
        string(),
    ];
    leaf.prop_map(Tree::Token).prop_recursive(6, 40, 5, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Tree::Array),
            vec((string(), inner), 0..5).prop_map(Tree::Object),
        ]
    })
}

/// Any JSON value, whether clients can parse it or not.
pub(super) fn any_value() -> impl Strategy<Value = String> {
    let number = "-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,8})?([eE][+-]?[0-9]{1,3})?";
    tree(PIECES, number).prop_map(|tree| {
        let mut tokens = Vec::new();
        tree.tokens(&mut tokens);
        tokens.concat()
    })
}

/// A record's fields as tokens (the value first), in any order, each with a text.
fn record() -> impl Strategy<Value = Vec<Vec<String>>> {
    // without halves of surrogate pairs, and within a double's range
    let number = "-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,8})?([eE][+-]?[0-9]{1,2})?";
    let value = tree(&PIECES[2..], number).prop_map(|tree| {
        let mut tokens = vec!["\"value\"".to_owned(), ":".to_owned()];
        tree.tokens(&mut tokens);
        tokens
    });
    let token = |text: String| serde_json::to_string(&text).unwrap();
    let field = move |name: &'static str, texts: BoxedStrategy<String>| {
        let tokens =
            texts.prop_map(move |text| vec![format!("\"{name}\""), ":".to_owned(), token(text)]);
        proptest::option::of(tokens)
    };
    let texts = || "\\PC{0,8}|[\\x00-\\x20\"\\\\]{0,4}".boxed();
    let instants = (-62_167_219_200_000..=253_402_300_799_999_i64)
        .prop_map(|ms| crate::model::Timestamp(ms).to_string());
    let headers = proptest::collection::btree_map(texts(), texts(), 0..4).prop_map(move |map| {
        let headers = map.into_iter().map(|(k, v)| (token(k), Tree::Token(token(v)))).collect();
        let mut tokens = vec!["\"headers\"".to_owned(), ":".to_owned()];
        Tree::Object(headers).tokens(&mut tokens);
        tokens
    });
    let ids = texts().prop_filter("not empty", |id| !id.is_empty()).boxed();
    let others = (
        field("key", texts()),
        field("id", ids),
        field("timestamp", instants.boxed()),
        proptest::option::of(headers),
    );
    (value, others).prop_map(|(value, (key, id, timestamp, headers))| {
        [Some(value), key, id, timestamp, headers].into_iter().flatten().collect()
    })
}

/// The record with `spaces` between its tokens, in turn.
fn spaced(fields: &[Vec<String>], spaces: &[&str]) -> String {
    let mut tokens = vec!["{".to_owned()];
    for (i, field) in fields.iter().enumerate() {
        tokens.extend((i > 0).then(|| ",".to_owned()));
        tokens.extend(field.iter().cloned());
    }
    tokens.push("}".to_owned());
    let spaces = spaces.iter().cycle();
    tokens.iter().zip(spaces).map(|(token, space)| format!("{token}{space}")).collect()
}

fn spaces() -> impl Strategy<Value = Vec<&'static str>> {
    vec(select(&["", "", " ", "\n", "\r\n", "\t", "  \n    "][..]), 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn whitespace_order_and_form_make_no_difference(
        records in vec((record(), any::<prop::sample::Index>()), 1..4),
        spaces in spaces(),
    ) {
        let mut compact = String::new();
        let (mut loose, mut rotated_lines) = (Vec::new(), String::new());
        for (fields, turn) in &records {
            compact += &(spaced(fields, &[""]) + "\n");
            let mut rotated = fields.clone();
            rotated.rotate_left(turn.index(fields.len()));
            loose.push(spaced(&rotated, &spaces));
            rotated_lines += &(spaced(&rotated, &[" ", ""]) + " \r\n");
        }
        let batch = ndjson(&compact).unwrap();
        // The record was made in canonical form, so the line has to be exactly it: every token.
        prop_assert_eq!(&batch.lines, &compact);
        let body = format!("{{ \"epoch\" : 1 , \"records\" :\n[{}] }}", loose.join(" ,\t"));
        let (envelope, from_json) = json(&body).unwrap();
        prop_assert_eq!(envelope, Envelope { epoch: Some(1), ..Envelope::default() });
        prop_assert_eq!(&from_json, &batch);
        prop_assert_eq!(&array(&format!("[{}]", loose.join(" ,\n"))).unwrap(), &batch);
        prop_assert_eq!(&ndjson(&rotated_lines).unwrap(), &batch);
    }

    #[test]
    fn what_a_read_answers_can_be_sent_again(records in vec(record(), 1..4)) {
        let lines: String = records.iter().map(|fields| spaced(fields, &[""]) + "\n").collect();
        let batch = ndjson(&lines).unwrap();
        let read: String = batch
            .lines
            .lines()
            .enumerate()
            .map(|(i, line)| {
                let rest = line.strip_prefix('{').unwrap();
                format!("{{\"offset\":{i},\"appended_at\":\"2026-11-21T08:00:00.000Z\",{rest}\n")
            })
            .collect();
        prop_assert_eq!(ndjson(&read).unwrap(), batch);
    }

    #[test]
    fn no_bytes_make_it_panic(
        bytes in vec(any::<u8>(), 0..200),
        fields in record(),
        spaces in spaces(),
        places in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let record = spaced(&fields, &spaces);
        let mut body = format!("{{\"sequence\":3,\"records\":[{record}]}}").into_bytes();
        for (place, byte) in places {
            let at = place.index(body.len());
            body[at] = byte;
        }
        for body in [&bytes[..], &body[..], &body[..cut.index(body.len())]] {
            for traceparent in [None, Some(TRACE)] {
                let _ = Batch::from_json(body, traceparent);
                let _ = Batch::from_ndjson(body, traceparent);
            }
        }
    }

    #[test]
    fn an_accepted_body_is_json_and_so_are_its_lines(
        fields in record(),
        place in any::<prop::sample::Index>(),
        byte in select(&b" {}[]\",:\\n0-e.u\x00\xc3"[..]),
    ) {
        let mut line = spaced(&fields, &[""]).into_bytes();
        let at = place.index(line.len());
        line[at] = byte;
        if let Ok(batch) = Batch::from_ndjson(&line, None) {
            serde_json::from_slice::<&serde_json::value::RawValue>(&line).unwrap();
            for line in batch.lines.lines() {
                serde_json::from_str::<&serde_json::value::RawValue>(line).unwrap();
            }
        }
    }
}
