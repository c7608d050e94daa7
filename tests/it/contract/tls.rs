//! TLS in the process: certificates that change, clients that must show one, and who spoils
//! handshakes.

use std::{fs, path::Path, sync::Arc};

use reqwest::{Certificate, Identity, tls::TlsInfo};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs::default_provider,
    pki_types::{CertificateDer, pem::PemObject},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::{
    cli::{oncelog, run},
    support::{
        self,
        http::{ISSUER, SECRET, token},
        proxy::Proxy,
        served::{Process, until},
    },
};

/// Nobody listens there: what is tested here needs no database.
const NOWHERE: &str = "postgres://postgres@127.0.0.1:9/oncelog?sslmode=disable";

fn key(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/keys/tls").join(name)).unwrap()
}

/// A directory with the certificate of this name as that of a server.
fn directory(name: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for part in ["pem", "key"] {
        fs::write(directory.path().join(part), key(&format!("{name}.{part}"))).unwrap();
    }
    fs::write(directory.path().join("ca"), key("ca.pem")).unwrap();
    directory
}

fn path(directory: &TempDir, name: &str) -> String {
    directory.path().join(name).to_str().unwrap().to_owned()
}

/// A server of HTTPS, without a database unless there is one among the settings.
async fn serve(directory: &TempDir, settings: &[(&str, &str)]) -> Process {
    let (cert, key) = (path(directory, "pem"), path(directory, "key"));
    let own = [
        ("ONCELOG_TOKEN_HS256_SECRET", SECRET),
        ("ONCELOG_DATABASE_URL", NOWHERE),
        ("ONCELOG_TLS_CERT_FILE", &cert),
        ("ONCELOG_TLS_KEY_FILE", &key),
    ];
    let environment = [&own, settings].concat();
    let mut process = Process::listening(&["--listen", "127.0.0.1:0"], &environment).await;
    process.url = process.url.replace("http://", "https://");
    process
}

fn address(process: &Process) -> &str {
    process.url.trim_start_matches("https://")
}

fn client(identity: Option<&str>) -> reqwest::Client {
    let ca = Certificate::from_pem(&key("ca.pem")).unwrap();
    let builder = reqwest::Client::builder().tls_certs_only([ca]).tls_info(true);
    let identity = identity.map(|name| {
        let pem = [key(&format!("{name}.pem")), key(&format!("{name}.key"))].concat();
        Identity::from_pem(&pem).unwrap()
    });
    identity.into_iter().fold(builder, reqwest::ClientBuilder::identity).build().unwrap()
}

async fn livez(process: &Process, client: &reqwest::Client) -> reqwest::Result<reqwest::Response> {
    client.get(format!("{}/livez", process.url)).send().await
}

/// Whether the server shows the certificate of this name.
async fn shows(process: &Process, name: &str) -> bool {
    // a new client makes a new connection
    let answer = livez(process, &client(None)).await.unwrap();
    assert_eq!(answer.status(), 200);
    let shown = answer.extensions().get::<TlsInfo>().unwrap().peer_certificate().unwrap().to_vec();
    let pem = key(&format!("{name}.pem"));
    shown == *CertificateDer::from_pem_slice(&pem).unwrap()
}

#[tokio::test]
async fn both_protocols_are_offered_and_no_other() {
    let process = serve(&directory("server"), &[]).await;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&key("ca.pem")).unwrap()).unwrap();
    for protocol in ["h2", "http/1.1", "spdy/3"] {
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_root_certificates(roots.clone()).with_no_client_auth();
        config.alpn_protocols = vec![protocol.into()];
        let stream = TcpStream::connect(address(&process)).await.unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let connected = connector.connect("localhost".try_into().unwrap(), stream).await;
        match (connected, protocol) {
            (Ok(stream), "h2" | "http/1.1") => {
                let (_, connection) = stream.get_ref();
                assert_eq!(connection.alpn_protocol(), Some(protocol.as_bytes()));
            }
            (outcome, _) => assert!(outcome.is_err() && protocol == "spdy/3", "{protocol}"),
        }
    }
}

/// Every order of replacing the two files has an instant at which they do not fit together.
#[tokio::test]
async fn a_certificate_is_replaced_under_a_running_server() {
    let directory = directory("server");
    let process = serve(&directory, &[]).await;
    let kept = client(None);
    assert_eq!(livez(&process, &kept).await.unwrap().status(), 200);
    assert!(shows(&process, "server").await);
    fs::write(path(&directory, "key"), key("renewed.key")).unwrap();
    until("half of the change to be refused", async || {
        process.log().contains("what was read before stays in use").then_some(())
    })
    .await;
    assert!(shows(&process, "server").await);
    fs::write(path(&directory, "pem"), key("renewed.pem")).unwrap();
    let renewed = async || shows(&process, "renewed").await.then_some(());
    until("the new certificate to be shown", renewed).await;
    fs::remove_file(path(&directory, "pem")).unwrap();
    until("a missing file to be told", async || {
        process.log().contains("cannot read").then_some(())
    })
    .await;
    assert!(shows(&process, "renewed").await);
    // who was connected before stays so
    assert_eq!(livez(&process, &kept).await.unwrap().status(), 200);
    assert!(!process.log().contains("PRIVATE KEY"));
}

#[tokio::test]
async fn where_clients_must_show_a_certificate_others_are_not_heard() {
    let directory = directory("server");
    let ca = path(&directory, "ca");
    let process = serve(&directory, &[("ONCELOG_TLS_CLIENT_CA_FILE", &ca)]).await;
    assert_eq!(livez(&process, &client(Some("client"))).await.unwrap().status(), 200);
    for identity in [None, Some("stranger")] {
        assert!(livez(&process, &client(identity)).await.is_err(), "{identity:?}");
    }
    // a scraper on this machine has none, and needs none
    let probe = reqwest::get(format!("{}/livez", process.admin_url)).await.unwrap();
    assert_eq!(probe.status(), 200);
}

/// All that comes until the server closes.
async fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    bytes
}

#[tokio::test]
async fn who_speaks_http_is_told_that_it_is_https() {
    let process = serve(&directory("server"), &[]).await;
    let answer = reqwest::get(process.url.replace("https://", "http://")).await.unwrap();
    assert_eq!(answer.status(), 400);
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    let text = answer.text().await.unwrap();
    assert!(text.contains("begin the URL with https://"), "{text}");
}

/// Handshakes have places of their own: one of eight. Who begins one and does not go on gives way
/// to the next, takes nobody's connection, and is cut in the end.
#[tokio::test]
async fn handshakes_that_do_not_go_on_stop_nobody() {
    let settings = [("ONCELOG_MAX_CONNECTIONS", "8"), ("ONCELOG_HEADER_TIMEOUT_MS", "1000")];
    let process = serve(&directory("server"), &settings).await;
    let kept = client(None);
    assert_eq!(livez(&process, &kept).await.unwrap().status(), 200);
    let address = address(&process);
    let mut silent = Vec::new();
    // nothing; half of a handshake; what is none
    for said in [&b""[..], &[22, 3, 1, 2, 0, 1][..], &[0; 64][..]].repeat(8) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(said).await;
        silent.push(stream);
        assert_eq!(livez(&process, &client(None)).await.unwrap().status(), 200);
    }
    assert_eq!(livez(&process, &kept).await.unwrap().status(), 200);
    for stream in silent {
        assert!(rest(stream).await.len() < 100);
    }
}

#[tokio::test]
async fn files_that_do_not_fit_end_the_start_with_a_sentence() {
    let directory = directory("server");
    let stranger = path(&directory, "stranger");
    fs::write(&stranger, key("stranger.key")).unwrap();
    let (pem, good) = (path(&directory, "pem"), path(&directory, "key"));
    for (cert, key, expected) in [
        (&pem, "/nonexistent", "cannot read /nonexistent"),
        (&pem, pem.as_str(), "is no private key in PEM"),
        (&good, good.as_str(), "has no certificate in PEM"),
        (&pem, stranger.as_str(), "keys may not be consistent"),
        (&pem, "", "belong together"),
    ] {
        let mut serve = oncelog(&["serve", "--listen", "127.0.0.1:0", "--tls-cert-file", cert]);
        serve.env("ONCELOG_TLS_KEY_FILE", key).env("ONCELOG_TOKEN_HS256_SECRET", SECRET);
        serve.env("ONCELOG_DATABASE_URL", NOWHERE);
        let output = run(serve).await;
        assert!(output.failed(1).contains(expected), "{expected}: {output:?}");
    }
}

#[tokio::test]
async fn commands_trust_the_authority_they_are_given_and_show_a_certificate() {
    let directory = directory("server");
    let (ca, both) = (path(&directory, "ca"), path(&directory, "both"));
    fs::write(&both, [key("client.pem"), key("client.key")].concat()).unwrap();
    let options = support::database().await;
    let proxy = Proxy::start(&options, 1).await;
    let reached = proxy.options(&options);
    let (port, database) = (reached.get_port(), reached.get_database().unwrap());
    let database = format!("postgres://postgres@127.0.0.1:{port}/{database}?sslmode=disable");
    let settings = [
        ("ONCELOG_TLS_CLIENT_CA_FILE", ca.as_str()),
        ("ONCELOG_DATABASE_URL", &database),
        ("ONCELOG_TOKEN_ISSUER", ISSUER),
    ];
    let process = serve(&directory, &settings).await;
    let command = |ca: Option<&str>, cert: Option<&str>| {
        let mut command = oncelog(&["topic", "create", "orders", "--url", &process.url]);
        command.env("ONCELOG_TOKEN", token("default", "admin"));
        ca.into_iter().for_each(|ca| _ = command.args(["--ca-file", ca]));
        cert.into_iter().for_each(|cert| _ = command.env("ONCELOG_CLIENT_CERT_FILE", cert));
        command
    };
    let created = run(command(Some(&ca), Some(&both))).await;
    assert_eq!(created.lines()[0]["topic"], "orders", "{created:?}");
    let wrong = run(command(Some(&path(&directory, "key")), None)).await;
    assert!(wrong.failed(1).contains("--ca-file has no certificate in PEM"), "{wrong:?}");
    let wrong = run(command(Some(&ca), Some(&ca))).await;
    assert!(wrong.failed(1).contains("a certificate and its private key"), "{wrong:?}");
    let wrong = run(command(Some("/nonexistent"), None)).await;
    assert!(wrong.failed(1).contains("cannot read /nonexistent"), "{wrong:?}");
}
