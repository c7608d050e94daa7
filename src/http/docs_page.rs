//! `/docs`: the OpenAPI document as a page to read and to try. Everything it loads is part of the
//! program; its policy lets it speak to this server only.

use std::{
    borrow::Cow,
    fmt::Write,
    sync::{Arc, LazyLock},
};

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Redirect, Response},
};
use sha2::{Digest, Sha256};
use utoipa_swagger_ui::Config;

use crate::{broker::Error, model::Code};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Swagger UI has its icons in `data:` URLs; nothing of it, or of ours, is inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    // a new version of the program has new files under the same names
    (header::CACHE_CONTROL, "no-cache"),
];

struct File {
    content_type: &'static str,
    bytes: Cow<'static, [u8]>,
    /// Weak: compressed it is still the same.
    etag: String,
}

impl File {
    fn new(content_type: &'static str, bytes: impl Into<Cow<'static, [u8]>>) -> Self {
        let bytes = bytes.into();
        let mut etag = String::from("W/\"");
        for byte in Sha256::digest(&bytes).iter().take(8) {
            // Writing to a string does not fail.
            let _ = write!(etag, "{byte:02x}");
        }
        etag.push('"');
        Self { content_type, bytes, etag }
    }

    /// A file of Swagger UI as it was released.
    fn released(content_type: &'static str, name: &str) -> Self {
        let file = utoipa_swagger_ui::serve(name, Arc::new(Config::default())).ok().flatten();
        Self::new(content_type, file.map(|file| file.bytes).unwrap_or_default())
    }

    fn answer(&self, asked: &HeaderMap) -> Response {
        let known = asked.get_all(header::IF_NONE_MATCH).iter().any(|tags| {
            let tags = tags.to_str().unwrap_or_default();
            tags.split(',').map(str::trim).any(|tag| tag == "*" || tag == self.etag)
        });
        let mut answer = if known {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            ([(header::CONTENT_TYPE, self.content_type)], self.bytes.clone()).into_response()
        };
        let headers = answer.headers_mut();
        headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
        if let Ok(etag) = HeaderValue::from_str(&self.etag) {
            headers.insert(header::ETAG, etag);
        }
        answer
    }
}

/// The API to read and to try
///
/// This document as a page for people (Swagger UI), with a form for every operation. It loads
/// nothing from other hosts. Where a token is needed, put one into *Authorize*; it is kept until
/// the page is closed.
#[utoipa::path(get, path = "/docs", operation_id = "docs", tag = "service",
    responses(
        (status = 200, description = "The page", body = String, content_type = "text/html",
            example = json!("<!doctype html>...")),
        (status = 304, description = "`If-None-Match` names the page as it is")),
    security())]
pub async fn docs(asked: HeaderMap) -> Response {
    static PAGE: LazyLock<File> =
        LazyLock::new(|| File::new(HTML, include_bytes!("docs_page/page.html").as_slice()));
    PAGE.answer(&asked)
}

/// `/docs/`, which people type as well. (Relative: what is in front of us may add a prefix.)
pub async fn docs_slash() -> Redirect {
    Redirect::permanent("../docs")
}

/// What the page loads; all there is.
static FILES: LazyLock<[(&str, File); 3]> = LazyLock::new(|| {
    [
        ("swagger-ui.css", File::released(CSS, "swagger-ui.css")),
        ("swagger-ui-bundle.js", File::released(SCRIPT, "swagger-ui-bundle.js")),
        ("start.js", File::new(SCRIPT, include_bytes!("docs_page/start.js").as_slice())),
    ]
});

/// A file of that page
///
/// Styles and scripts of `/docs`.
#[utoipa::path(get, path = "/docs/{file}", operation_id = "docs_file", tag = "service",
    params(("file" = String, Path, description = "`swagger-ui.css`, `swagger-ui-bundle.js` or \
        `start.js`")),
    responses(
        (status = 200, description = "The file", content(
            (String = "text/css", example = json!("body{margin:0}")),
            (String = "text/javascript", example = json!("SwaggerUIBundle({});")))),
        (status = 304, description = "`If-None-Match` names the file as it is")),
    security())]
pub async fn docs_file(uri: Uri, asked: HeaderMap) -> Result<Response, Error> {
    let name = uri.path().rsplit('/').next();
    let file = FILES.iter().find(|(known, _)| name == Some(*known));
    let (_, file) = file.ok_or_else(|| {
        Error::new(Code::RouteNotFound, "There is nothing at this path; see /openapi.json.")
    })?;
    Ok(file.answer(&asked))
}
