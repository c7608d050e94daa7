//! `/docs`: the OpenAPI document as a page to read and to try. Everything it loads is part of the
//! program; its policy lets it speak to this server only.

use std::{
    borrow::Cow,
    sync::{Arc, LazyLock},
};

use axum::{
    http::{HeaderMap, Uri},
    response::{Redirect, Response},
};
use bytes::Bytes;
use utoipa_swagger_ui::Config;

use crate::{broker::Error, http::constant::Constant, model::Code};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A file of Swagger UI as it was released.
fn released(content_type: &'static str, name: &str) -> Constant {
    let file = utoipa_swagger_ui::serve(name, Arc::new(Config::default())).ok().flatten();
    let bytes = match file.map(|file| file.bytes).unwrap_or_default() {
        Cow::Borrowed(bytes) => Bytes::from_static(bytes),
        Cow::Owned(bytes) => Bytes::from(bytes),
    };
    Constant::new(content_type, bytes)
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
    static PAGE: LazyLock<Constant> =
        LazyLock::new(|| Constant::new(HTML, include_bytes!("page.html").as_slice()));
    PAGE.answer(&asked).await
}

/// `/docs/`, which people type as well. (Relative: what is in front of us may add a prefix.)
pub async fn docs_slash() -> Redirect {
    Redirect::permanent("../docs")
}

/// What the page loads; all there is.
static FILES: LazyLock<[(&str, Constant); 3]> = LazyLock::new(|| {
    [
        ("swagger-ui.css", released(CSS, "swagger-ui.css")),
        ("swagger-ui-bundle.js", released(SCRIPT, "swagger-ui-bundle.js")),
        ("start.js", Constant::new(SCRIPT, include_bytes!("start.js").as_slice())),
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
    Ok(file.answer(&asked).await)
}
