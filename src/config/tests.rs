use std::io::Write;

use super::*;
use crate::{app, broker::ServiceConfig, http::Limits, model::settings};

const SECRET: &str = "a-secret-that-nobody-may-ever-see";
const URL: &str = "postgres://me:hunter2@db:5432/oncelog";

fn environment(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

fn flags(pairs: &[(&'static str, &str)]) -> Flags {
    Flags {
        config: None,
        values: pairs.iter().map(|(name, text)| (*name, (*text).into())).collect(),
    }
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn mistakes(flags: &Flags, pairs: &[(&str, &str)]) -> String {
    Config::from_sources(flags, &environment(pairs)).unwrap_err().to_string()
}

fn origin<'a>(config: &'a Config, name: &str) -> &'a Origin {
    &config.entries.iter().find(|entry| entry.name == name).unwrap().origin
}

/// What is configured and what is not (in tests) have the same defaults.
#[test]
fn defaults_are_those_of_what_they_configure() {
    let config = Config::from_sources(&Flags::default(), &BTreeMap::new()).unwrap();
    assert_eq!(app::limits(&config), Limits::default());
    // as many lanes as the machine has cores for
    let service_config = ServiceConfig { lanes: config.lanes, ..ServiceConfig::default() };
    assert_eq!(app::service_config(&config), service_config);
}

#[test]
fn every_default_is_right() {
    let config = Config::from_sources(&Flags::default(), &BTreeMap::new()).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.max_body_bytes, 16 << 20);
    assert_eq!(config.max_in_flight_bytes, 256 << 20);
    assert_eq!(config.page_cache_bytes, 128 << 20);
    assert!(config.lanes >= 1 && config.worker_threads >= 1);
    assert_eq!(config.entries.len(), KEYS.len());
    assert!(config.entries.iter().all(|entry| entry.origin == Origin::Default));
    assert!(!config.has_token_key());
}

#[test]
fn a_later_source_overrules() {
    let file = file("lanes = 3\npool_connections = 3\ngap_wait_ms = \"3\"\n");
    let mut flags = flags(&[("lanes", "5")]);
    flags.config = Some(file.path().into());
    let variables = [("ONCELOG_LANES", "4"), ("ONCELOG_POOL_CONNECTIONS", "4")];
    let config = Config::from_sources(&flags, &environment(&variables)).unwrap();
    assert_eq!((config.lanes, config.pool_connections, config.gap_wait_ms), (5, 4, 3));
    assert_eq!(*origin(&config, "lanes"), Origin::Flag("--lanes".into()));
    assert_eq!(
        *origin(&config, "pool_connections"),
        Origin::Environment("ONCELOG_POOL_CONNECTIONS".into())
    );
    assert_eq!(*origin(&config, "gap_wait_ms"), Origin::File(file.path().into()));
    assert_eq!(*origin(&config, "listen"), Origin::Default);
    let path = file.path().to_str().unwrap();
    let config =
        Config::from_sources(&Flags::default(), &environment(&[("ONCELOG_CONFIG", path)])).unwrap();
    assert_eq!(config.lanes, 3);
}

#[test]
fn what_is_shown_is_a_file_that_says_the_same() {
    let given = flags(&[("lanes", "3"), ("data_dir", "/a \"b\"\\c"), ("log_format", "json")]);
    let config = Config::from_sources(&given, &BTreeMap::new()).unwrap();
    let file = file(&config.to_string());
    let from_file = Flags { config: Some(file.path().into()), ..Flags::default() };
    let again = Config::from_sources(&from_file, &BTreeMap::new()).unwrap();
    let values = |config: &Config| -> Vec<(&str, String)> {
        config.entries.iter().map(|entry| (entry.name, entry.shown.clone())).collect()
    };
    assert_eq!(values(&config), values(&again));
    assert_eq!(again.data_dir.to_str(), Some("/a \"b\"\\c"));
}

#[test]
fn times_and_sizes_have_units_in_every_source() {
    let file = file("gap_wait_ms = \"2s\"\nmax_body_bytes = 65536\nlanes = \"2\"\n");
    let mut given = flags(&[("body_timeout_ms", "1m"), ("page_cache_bytes", "0")]);
    given.config = Some(file.path().into());
    let variables = [("ONCELOG_MAX_IN_FLIGHT_BYTES", "1GiB"), ("ONCELOG_DRAIN_TIMEOUT_MS", "5 s")];
    let config = Config::from_sources(&given, &environment(&variables)).unwrap();
    assert_eq!((config.gap_wait_ms, config.max_body_bytes, config.lanes), (2_000, 65_536, 2));
    assert_eq!((config.body_timeout_ms, config.page_cache_bytes), (60_000, 0));
    assert_eq!((config.max_in_flight_bytes, config.drain_timeout_ms), (1 << 30, 5_000));
    for line in ["gap_wait_ms = 2000  # file", "max_in_flight_bytes = 1073741824  # environment"] {
        assert!(config.to_string().contains(line), "{config}");
    }
    let shown = format!("{config:#}");
    for line in ["gap_wait_ms = \"2s\"  # file", "page_cache_bytes = \"0\"  # flag", "lanes = 2  #"]
    {
        assert!(shown.contains(line), "{shown}");
    }
    let again = self::file(&shown);
    let again = Flags { config: Some(again.path().into()), ..Flags::default() };
    let again = Config::from_sources(&again, &BTreeMap::new()).unwrap();
    assert_eq!(again.max_in_flight_bytes, 1 << 30);

    let wrong = [("max_body_bytes", "10MB"), ("gap_wait_ms", "2m"), ("lanes", "2s")];
    let text = mistakes(&flags(&wrong), &[]);
    for words in [
        "is `10MB`, must be an integer from 65536 to 1073741824; a size is an integer with B, KiB",
        "gap_wait_ms (from flag --gap-wait-ms) is `2m`, must be an integer from 0 to 60000\n",
        "lanes (from flag --lanes) is `2s`, must be an integer from 0 to 256",
    ] {
        assert!(format!("{text}\n").contains(words), "{words:?} is not in\n{text}");
    }
}

#[test]
fn the_own_variable_overrules_the_common_one() {
    let mut variables = vec![("DATABASE_URL", URL), ("ONCELOG_TOKEN_HS256_SECRET", SECRET)];
    let config = Config::from_sources(&Flags::default(), &environment(&variables)).unwrap();
    assert_eq!(*origin(&config, "database_url"), Origin::Environment("DATABASE_URL".into()));
    variables.push(("ONCELOG_DATABASE_URL", "postgres://other/db"));
    let config = Config::from_sources(&Flags::default(), &environment(&variables)).unwrap();
    assert_eq!(
        *origin(&config, "database_url"),
        Origin::Environment("ONCELOG_DATABASE_URL".into())
    );
}

#[test]
fn all_mistakes_are_told_at_once() {
    let file = file("colour = 1\nlanes = [1]\nbody_timeout_ms = 1\n");
    let mut flags = flags(&[("listen", "localhost"), ("max_body_bytes", "many")]);
    flags.config = Some(file.path().into());
    let text = mistakes(
        &flags,
        &[
            ("ONCELOG_TOKEN_HS256_SECRET", "short"),
            ("ONCELOG_LISTENN", "x"),
            ("ONCELOG_LOG_LEVEL", "loud"),
            ("DATABASE_URL", "mysql://me:hunter2@db"),
        ],
    );
    let path = file.path().display();
    let expected = [
        format!("unknown key `colour` in {path}"),
        format!(
            "lanes (from file {path}) is a array, but must be a string, an integer or a boolean"
        ),
        "unknown environment variable ONCELOG_LISTENN".into(),
        "listen (from flag --listen) is `localhost`, must be an IP address and a port".into(),
        "max_body_bytes (from flag --max-body-bytes) is `many`, must be an integer from 65536 to \
         1073741824"
            .into(),
        format!("body_timeout_ms (from file {path}) is `1`, must be an integer from 100 to"),
        "token_hs256_secret (from environment ONCELOG_TOKEN_HS256_SECRET) must have at least 32"
            .into(),
        "log_level (from environment ONCELOG_LOG_LEVEL) is `loud`, must be error, warn".into(),
        "database_url (from environment DATABASE_URL) must be a URL such as".into(),
    ];
    for words in &expected {
        assert!(text.contains(words.as_str()), "{words:?} is not in\n{text}");
    }
    assert_eq!(text.matches("\n  - ").count(), expected.len(), "{text}");
    assert!(!text.contains("hunter2") && !text.contains("short"), "{text}");
}

#[test]
fn secrets_are_never_shown() {
    let variables = [("DATABASE_URL", URL), ("ONCELOG_TOKEN_HS256_SECRET", SECRET)];
    let config = Config::from_sources(&Flags::default(), &environment(&variables)).unwrap();
    let shown = format!("{config:?}\n{config:#?}\n{config}");
    assert!(!shown.contains(SECRET) && !shown.contains("hunter2"), "{shown}");
    assert!(
        shown.contains("token_hs256_secret = \"***\"  # environment ONCELOG_TOKEN_HS256_SECRET")
    );
    assert!(shown.contains("database_url = \"***\"  # environment DATABASE_URL"));

    // TOML errors quote the line by default.
    let file = file(&format!("lanes = 1\ntoken_hs256_secret = \"{SECRET}\n"));
    let flags = Flags { config: Some(file.path().into()), ..Flags::default() };
    let text = mistakes(&flags, &[]);
    assert!(text.contains("near line 2, is not TOML"), "{text}");
    assert!(!text.contains(SECRET), "{text}");
}

#[test]
fn nobody_is_served_without_a_token_from_afar() {
    let text = mistakes(&flags(&[("listen", "0.0.0.0:8080")]), &[]);
    assert!(text.contains("listen is 0.0.0.0:8080, which other hosts can reach"), "{text}");
    let text = mistakes(&Flags::default(), &[("DATABASE_URL", URL)]);
    assert!(text.contains("database_url requires tokens"), "{text}");
    for key in [("token_hs256_secret", SECRET), ("token_jwks_file", "keys.json")] {
        for other in [("listen", "0.0.0.0:8080"), ("database_url", URL)] {
            let flags = flags(&[key, other]);
            let config = Config::from_sources(&flags, &BTreeMap::new()).unwrap();
            assert!(config.has_token_key());
        }
    }
    let text = mistakes(&flags(&[("admin_listen", "0.0.0.0:8081")]), &[]);
    assert!(text.contains("admin_listen is 0.0.0.0:8081, which other hosts can reach"), "{text}");
    let loopback = flags(&[("listen", "[::1]:0")]);
    assert!(Config::from_sources(&loopback, &BTreeMap::new()).is_ok());
}

#[test]
fn the_admin_listener_has_an_address_of_its_own_where_tokens_are_needed() {
    let key = ("token_hs256_secret", SECRET);
    type Given<'a> = &'a [(&'static str, &'a str)];
    let table: [(Given, Option<&str>); 6] = [
        (&[], None),
        (&[("admin_listen", "127.0.0.1:9")], Some("127.0.0.1:9")),
        (&[key], Some("127.0.0.1:8081")),
        (&[key, ("listen", "0.0.0.0:80")], Some("127.0.0.1:81")),
        (&[key, ("listen", "[::]:0")], Some("127.0.0.1:0")),
        (&[key, ("admin_listen", "0.0.0.0:9000")], Some("0.0.0.0:9000")),
    ];
    for (given, expected) in table {
        let config = Config::from_sources(&flags(given), &BTreeMap::new()).unwrap();
        assert_eq!(config.admin_address().map(|a| a.to_string()).as_deref(), expected, "{given:?}");
    }
    for (given, words) in [
        (
            &[("admin_listen", "127.0.0.1:8080")][..],
            "admin_listen and listen are both 127.0.0.1:8080",
        ),
        (
            &[key, ("listen", "0.0.0.0:65535")],
            "there is no other for the admin listener: set admin",
        ),
        (
            &[("admin_listen", "8081")],
            "admin_listen (from flag --admin-listen) is `8081`, must be an IP",
        ),
        (
            &[("public_docs", "off")],
            "public_docs (from flag --public-docs) is `off`, must be true or",
        ),
    ] {
        let text = mistakes(&flags(given), &[]);
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn a_switch_may_be_a_boolean_in_the_file() {
    let file = file("public_docs = false\n");
    let from_file = Flags { config: Some(file.path().into()), ..Flags::default() };
    let config = Config::from_sources(&from_file, &BTreeMap::new()).unwrap();
    assert!(!config.public_docs);
    let again = self::file(&config.to_string());
    let again = Flags { config: Some(again.path().into()), ..Flags::default() };
    assert!(!Config::from_sources(&again, &BTreeMap::new()).unwrap().public_docs);
}

#[test]
fn one_largest_body_must_fit_in_flight() {
    let text = mistakes(&flags(&[("max_in_flight_bytes", "65536")]), &[]);
    assert!(text.contains("max_in_flight_bytes (65536) must be at least max_body_bytes"), "{text}");
}

#[test]
fn what_is_not_ours_in_the_environment_is_left_alone() {
    let foreign = [
        ("ONCELOG_URL", "http://localhost"),
        ("ONCELOG_ADMIN_URL", "http://localhost"),
        ("ONCELOG_TOKEN", "x"),
        ("ONCELOG_TEST_DIR", "x"),
        ("ONCELOG_LISTEN", ""),
        ("ONCELOG_SERVICE_HOST", "10.0.0.1"),
        ("ONCELOG_SERVICE_PORT_HTTP", "8080"),
        ("ONCELOG_PORT", "tcp://10.0.0.1:8080"),
        ("ONCELOG_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("PATH", "/bin"),
    ];
    Config::from_sources(&Flags::default(), &environment(&foreign)).unwrap();
    let text = mistakes(&Flags::default(), &[("ONCELOG_PORT", "8080")]);
    assert!(text.contains("unknown environment variable ONCELOG_PORT"), "{text}");
}

#[test]
fn a_missing_file_is_a_mistake() {
    let flags = Flags { config: Some("/nowhere/oncelog.toml".into()), ..Flags::default() };
    let text = mistakes(&flags, &[]);
    assert!(text.contains("cannot read the file /nowhere/oncelog.toml"), "{text}");
}

#[test]
fn a_secret_comes_from_a_file_and_a_newline_at_its_end_is_cut() {
    let secret = "0123456789abcdef0123456789abcdef";
    for (text, notes) in
        [(secret.to_owned(), 0), (format!("{secret}\n"), 1), (format!("{secret}\r\n"), 1)]
    {
        let mounted = file(&text);
        let path = mounted.path().to_str().unwrap();
        for (name, value) in [
            ("ONCELOG_TOKEN_HS256_SECRET", text.as_str()),
            ("ONCELOG_TOKEN_HS256_SECRET_FILE", path),
        ] {
            let config =
                Config::from_sources(&Flags::default(), &environment(&[(name, value)])).unwrap();
            let taken = config.token_hs256_secret.as_ref().unwrap();
            assert_eq!(secrecy::ExposeSecret::expose_secret(taken), secret);
            assert_eq!(*origin(&config, "token_hs256_secret"), Origin::Environment(name.into()));
            assert_eq!(config.notes.len(), notes);
            assert!(!config.notes.concat().contains(secret));
        }
        let both =
            [("ONCELOG_TOKEN_HS256_SECRET_FILE", path), ("ONCELOG_TOKEN_HS256_SECRET", secret)];
        assert!(mistakes(&Flags::default(), &both).contains("exclude each other"));
    }
    let url = file("postgres://user:password@db/oncelog\n");
    let named = [
        ("DATABASE_URL_FILE", url.path().to_str().unwrap()),
        ("ONCELOG_TOKEN_HS256_SECRET", secret),
    ];
    let config = Config::from_sources(&Flags::default(), &environment(&named)).unwrap();
    assert!(config.database_url.is_some());
    let missing = [("DATABASE_URL_FILE", "/no/such/file")];
    assert!(mistakes(&Flags::default(), &missing).contains("cannot read /no/such/file"));
    // what is no secret is not read from files
    let other = [("ONCELOG_LISTEN_FILE", "/etc/hostname")];
    assert!(mistakes(&Flags::default(), &other).contains("unknown environment variable"));
}

#[test]
fn a_secret_among_the_flags_is_noted() {
    let of = |name: &'static str, value: &str| {
        let values = [(name, value.to_owned())].into_iter().collect();
        let given = environment(&[("ONCELOG_TOKEN_HS256_SECRET", SECRET)]);
        Config::from_sources(&Flags { values, ..Flags::default() }, &given).unwrap().notes
    };
    let notes = of("token_hs256_secret", SECRET);
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(note.contains("--token-hs256-secret has a secret") && !note.contains(SECRET), "{note}");
    assert!(note.contains("ONCELOG_TOKEN_HS256_SECRET_FILE"), "{note}");
    assert_eq!(of("listen", "127.0.0.1:1"), [""; 0]);
}

#[test]
fn maxima_are_given_with_their_units() {
    let read = |text: &str| Config::read(&flags(&[("default_maxima", text)]));
    let config = read(" max_stored_bytes=10GiB,max_topics = 7, max_bytes_in_per_s=1MiB,").unwrap();
    let want = [
        (settings::Key::MaxTopics, 7),
        (settings::Key::MaxBytesInPerS, 1 << 20),
        (settings::Key::MaxStoredBytes, 10 << 30),
    ];
    assert_eq!(config.default_maxima.0.into_iter().collect::<Vec<_>>(), want);
    assert!(read("").unwrap().default_maxima.0.is_empty());
    let table = [
        ("max_topics", "must be KEY=VALUE, separated by commas"),
        ("max_topics=many", "must have a max_topics from 0 to 100000"),
        ("max_topics=100001", "must have a max_topics from 0 to 100000"),
        ("max_stored_bytes=10GB", "must have a max_stored_bytes from 0 to 9007199254740991"),
        ("max_topics=1 max_groups=2", "must have a max_topics from 0 to 100000"),
        ("cleanup=delete", "must name settings with a maximum, not `cleanup`"),
        ("nothing=1", "must name settings with a maximum, not `nothing`"),
    ];
    for (text, want) in table {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(want), "{text}: {error}");
    }
}

#[test]
fn tenants_are_known_by_their_tokens() {
    let known = [("tenants", "known")];
    let text = mistakes(&flags(&known), &[]);
    assert!(text.contains("tenants = known is for tenants that tokens name"), "{text}");
    let text = mistakes(&flags(&[("tenants", "some")]), &[]);
    assert!(text.contains("must be any or known"), "{text}");
}
