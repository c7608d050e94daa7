//! `/docs`: the page is served with all it loads, and nothing of it comes from elsewhere.

use std::io::Read;

use crate::support::http::{Answer, Server};
use flate2::read::GzDecoder;
use oncelog::{http::openapi::page::guides::PAGES, model::Code};

const FILES: [&str; 4] = ["page.css", "swagger-ui.css", "swagger-ui-bundle.js", "start.js"];

/// What stands behind `href=` and `src=`.
fn references(page: &str) -> Vec<&str> {
    let parts = page.split("href=\"").skip(1).chain(page.split("src=\"").skip(1));
    parts.map(|part| part.split('"').next().unwrap()).collect()
}

fn guarded(answer: &Answer) {
    let policy = answer.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
    // no host, no scheme but data: for icons
    for source in policy.split([';', ' ']).filter(|word| word.contains([':', '.', '*'])) {
        assert_eq!(source, "data:", "{policy}");
    }
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
    assert_eq!(answer.header("cache-control"), Some("no-cache"));
    assert!(answer.header("etag").unwrap().starts_with("W/\""));
}

#[tokio::test]
async fn the_page_has_all_it_loads() {
    let server = Server::signed().await;
    let page = server.get("/docs").await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    guarded(&page);
    let references = references(page.text());
    for file in FILES {
        assert!(references.contains(&&*format!("docs/{file}")), "{file}");
    }
    for reference in references.into_iter().filter(|reference| *reference != "data:,") {
        let answer = server.get(&format!("/{reference}")).await;
        assert_eq!(answer.status, 200, "{reference}");
        assert!(answer.body.len() > 200, "{reference}");
        if FILES.iter().any(|file| reference.ends_with(file)) {
            guarded(&answer);
            let media = if reference.ends_with(".css") { "text/css" } else { "text/javascript" };
            assert!(answer.header("content-type").unwrap().starts_with(media), "{reference}");
        }
    }
}

#[tokio::test]
async fn nothing_comes_from_elsewhere() {
    let server = Server::start().await;
    for path in ["/docs", "/docs/start.js"] {
        let answer = server.get(path).await;
        assert!(!answer.text().contains("//") || path.ends_with(".js"), "{path}");
        assert!(!answer.text().contains("://"), "{path}");
        // scripts and styles in the page itself would not run under its policy
        assert!(!answer.text().contains("<style") && !answer.text().contains("<script>"), "{path}");
    }
    assert!(server.get("/docs/start.js").await.text().contains("validatorUrl: \"none\""));
    let styles = server.get("/docs/swagger-ui.css").await;
    for url in styles.text().split("url(").skip(1) {
        assert!(url.trim_start_matches(['"', '\'']).starts_with("data:"), "{url:.60}");
    }
    assert!(!styles.text().contains("@import"));
}

#[tokio::test]
async fn it_is_found_and_kept_as_other_pages_are() {
    let server = Server::start().await;
    // reqwest follows
    assert_eq!(server.get("/docs/").await.text(), server.get("/docs").await.text());
    let raw = server.raw("GET /docs/ HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!((raw.status, raw.header("location")), (308, Some("../docs")));
    for path in ["/docs", "/docs/swagger-ui-bundle.js", "/openapi.json"] {
        let got = server.get(path).await;
        let head = server.call("HEAD", path).await;
        assert_eq!((head.status, head.body.len()), (200, 0));
        let etag = got.header("etag").unwrap();
        assert_eq!(head.header("etag"), Some(etag));
        assert_eq!(head.header("content-length"), Some(&*got.body.len().to_string()));
        for known in [etag, "*", &*format!("\"other\", {etag}")] {
            let again = server.get(path).header("if-none-match", known).await;
            assert_eq!((again.status, again.body.len()), (304, 0), "{known}");
            assert_eq!(again.header("etag"), Some(etag));
            assert_eq!(again.header("vary"), Some("accept-encoding"));
        }
        let other = server.get(path).header("if-none-match", "W/\"other\"").await;
        assert_eq!(other.body, got.body);
        // what is compressed once is the same for all, and for nobody who did not ask
        for encoding in ["gzip", "zstd", "gzip", "zstd"] {
            let small = server.get(path).header("accept-encoding", encoding).await;
            assert_eq!(small.header("content-encoding"), Some(encoding));
            assert_eq!(small.header("etag"), Some(etag));
            assert_eq!(small.header("vary"), Some("accept-encoding"));
            let length = small.body.len();
            assert_eq!(small.header("content-length"), Some(&*length.to_string()));
            assert!(length < got.body.len(), "{path} {encoding}");
            let mut whole = Vec::new();
            match encoding {
                "gzip" => drop(GzDecoder::new(&small.body[..]).read_to_end(&mut whole).unwrap()),
                _ => whole = zstd::decode_all(&small.body[..]).unwrap(),
            }
            assert!(whole == got.body, "{path} {encoding}");
        }
        assert_eq!(
            (got.header("content-encoding"), got.header("vary")),
            (None, Some("accept-encoding"))
        );
    }
    // a browser asks for a page; what asks for anything else finds nothing
    let accept = "text/html,application/xhtml+xml,*/*;q=0.8";
    let raw = |accept: &str| {
        server.raw(format!("GET / HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\n\r\n"))
    };
    let root = raw(accept).await;
    assert_eq!((root.status, root.header("location")), (307, Some("docs")));
    assert_eq!(raw("*/*").await.status, 404);
    for path in ["/docs/index.html", "/docs/x", "/docs/%2e%2e", "/docs/a/b", "/docs/start.js/"] {
        server.get(path).await.refused(Code::RouteNotFound);
    }
    server.post("/docs").await.refused(Code::MethodNotAllowed);
}

/// Every page of the repository is served, with what it needs, under the same policy.
#[tokio::test]
async fn guides_are_served_beside_the_page() {
    let server = Server::signed().await;
    let mut files: Vec<String> = std::fs::read_dir("docs")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".md"))
        .collect();
    files.sort();
    let known: Vec<&str> = PAGES.iter().map(|(name, _)| *name).collect();
    assert_eq!(files, known);
    for name in known {
        let path = format!("/docs/guides/{name}");
        let page = server.get(&path).await;
        assert_eq!(
            (page.status, page.header("content-type")),
            (200, Some("text/html; charset=utf-8"))
        );
        guarded(&page);
        assert!(page.text().contains("<h1 id="), "{name}");
        assert!(!page.text().contains("<script") && !page.text().contains("<style"), "{name}");
    }
    for path in ["/docs/guides/x.md", "/docs/guides/", "/docs/guides/..%2fREADME.md"] {
        server.get(path).await.refused(Code::RouteNotFound);
    }
}
