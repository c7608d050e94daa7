//! `/docs`: the OpenAPI document as a page to read and to try out. Everything it loads is part of
//! the binary; its content policy lets it connect to this server only.

pub mod guides;

use std::{
    borrow::Cow,
    sync::{Arc, LazyLock},
};

use axum::{
    http::{HeaderMap, Uri, header::ACCEPT},
    response::{Redirect, Response},
};
use bytes::Bytes;
use utoipa_swagger_ui::Config;

use crate::{broker::Error, http::constant::Constant, model::Code};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A file of the Swagger UI release, unchanged.
fn released(content_type: &'static str, name: &str) -> Constant {
    let file = utoipa_swagger_ui::serve(name, Arc::new(Config::default())).ok().flatten();
    let bytes = match file.map(|file| file.bytes).unwrap_or_default() {
        Cow::Borrowed(bytes) => Bytes::from_static(bytes),
        Cow::Owned(bytes) => Bytes::from(bytes),
    };
    Constant::new(content_type, bytes)
}

/// API page
///
/// Shows this document as a page (Swagger UI), with a form for every operation. It loads nothing
/// from other hosts. If a token is needed, enter it under *Authorize*; it is kept until the page is
/// closed.
#[utoipa::path(get, path = "/docs", operation_id = "docs", tag = "service",
    responses(
        (status = 200, description = "The page", body = String, content_type = "text/html",
            example = json!("<!doctype html>...")),
        (status = 304, description = "`If-None-Match` has the current ETag")),
    security())]
pub async fn docs(headers: HeaderMap) -> Response {
    static PAGE: LazyLock<Constant> =
        LazyLock::new(|| Constant::new(HTML, include_bytes!("page.html").as_slice()));
    PAGE.answer(&headers).await
}

/// Redirects people who open `/` in a browser; for programs there is nothing.
pub async fn root(headers: HeaderMap) -> Result<Redirect, Error> {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    match accepted
        .flat_map(|accept| accept.split(','))
        .any(|media| media.trim().starts_with("text/html"))
    {
        true => Ok(Redirect::temporary("docs")),
        false => Err(nothing_here()),
    }
}

fn nothing_here() -> Error {
    Error::new(Code::RouteNotFound, "This path does not exist; see /docs, or /openapi.json.")
}

/// Redirects `/docs/`, which people type as well. (Relative, because a proxy in front may add a
/// prefix.)
pub async fn docs_slash() -> Redirect {
    Redirect::permanent("../docs")
}

/// The files that the page loads.
static FILES: LazyLock<[(&str, Constant); 4]> = LazyLock::new(|| {
    [
        ("page.css", Constant::new(CSS, include_bytes!("page.css").as_slice())),
        ("swagger-ui.css", released(CSS, "swagger-ui.css")),
        ("swagger-ui-bundle.js", released(SCRIPT, "swagger-ui-bundle.js")),
        ("start.js", Constant::new(SCRIPT, include_bytes!("start.js").as_slice())),
    ]
});

/// File of the API page
///
/// Returns the styles and scripts of `/docs`.
#[utoipa::path(get, path = "/docs/{file}", operation_id = "docs_file", tag = "service",
    params(("file" = String, Path, description = "`page.css`, `swagger-ui.css`, \
        `swagger-ui-bundle.js` or `start.js`")),
    responses(
        (status = 200, description = "The file", content(
            (String = "text/css", example = json!("body{margin:0}")),
            (String = "text/javascript", example = json!("SwaggerUIBundle({});")))),
        (status = 304, description = "`If-None-Match` has the current ETag")),
    security())]
pub async fn docs_file(uri: Uri, headers: HeaderMap) -> Result<Response, Error> {
    let name = uri.path().rsplit('/').next();
    let file = FILES.iter().find(|(known, _)| name == Some(*known));
    let (_, file) = file.ok_or_else(nothing_here)?;
    Ok(file.answer(&headers).await)
}
