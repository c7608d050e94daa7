//! Media types and encodings: those of the request body and those the client accepts.

use axum::{
    extract::FromRequestParts,
    http::{
        HeaderMap,
        header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderName},
        request::Parts,
    },
};

use crate::{broker::Error, model::Code};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    Json,
    /// One JSON document per line.
    Ndjson,
}

impl Media {
    pub fn as_str(self) -> &'static str {
        match self {
            Media::Json => "application/json",
            Media::Ndjson => "application/x-ndjson",
        }
    }
}

/// The media type of the body, if the request names one; 415 if it is not in `taken`.
pub fn content_type(headers: &HeaderMap, taken: &[Media]) -> Result<Option<Media>, Error> {
    let Some(text) = single(headers, &CONTENT_TYPE)? else { return Ok(None) };
    let mut parts = text.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default();
    let utf8 = parts.filter_map(|parameter| parameter.split_once('=')).all(|(name, value)| {
        !name.trim().eq_ignore_ascii_case("charset")
            || value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
    });
    match taken.iter().find(|media| essence.eq_ignore_ascii_case(media.as_str())) {
        Some(media) if utf8 => Ok(Some(*media)),
        _ => Err(untaken(taken)),
    }
}

pub fn untaken(taken: &[Media]) -> Error {
    let names: Vec<_> = taken.iter().map(|media| media.as_str()).collect();
    let detail = format!("The request body must be {}, in UTF-8.", names.join(" or "));
    Error::new(Code::UnsupportedMediaType, detail)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Identity,
    Gzip,
    Zstd,
}

impl Encoding {
    pub fn as_str(self) -> &'static str {
        match self {
            Encoding::Identity => "identity",
            Encoding::Gzip => "gzip",
            Encoding::Zstd => "zstd",
        }
    }
}

/// Picks the response encoding by `Accept-Encoding`: the smallest of the most preferred ones, or
/// none if none is acceptable.
pub fn accept_encoding(headers: &HeaderMap) -> Encoding {
    let fields = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let ranges: Vec<(&str, f32)> =
        fields.flat_map(|field| field.split(',')).filter_map(range).collect();
    let named = |name: &str| ranges.iter().find(|(range, _)| range.eq_ignore_ascii_case(name));
    let quality_of =
        |name: &str| named(name).or_else(|| named("*")).map_or(0.0, |(_, quality)| *quality);
    let mut best = (Encoding::Identity, named("identity").map_or(0.0, |(_, quality)| *quality));
    for encoding in [Encoding::Zstd, Encoding::Gzip] {
        let quality = quality_of(encoding.as_str());
        let is_better = match best {
            (Encoding::Identity, least) => quality > 0.0 && quality >= least,
            (_, least) => quality > least,
        };
        if is_better {
            best = (encoding, quality);
        }
    }
    best.0
}

pub fn content_encoding(headers: &HeaderMap) -> Result<Encoding, Error> {
    match single(headers, &CONTENT_ENCODING)?.unwrap_or("identity").to_ascii_lowercase().as_str() {
        "identity" => Ok(Encoding::Identity),
        "gzip" | "x-gzip" => Ok(Encoding::Gzip),
        "zstd" => Ok(Encoding::Zstd),
        _ => Err(Error::new(
            Code::UnsupportedMediaType,
            "Content-Encoding must be one of gzip, zstd, identity.",
        )),
    }
}

fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Error> {
    let mut values = headers.get_all(name).iter();
    let (first, second) = (values.next(), values.next());
    let Some(first) = first else { return Ok(None) };
    match (first.to_str(), second) {
        (Ok(text), None) => Ok(Some(text.trim())),
        _ => Err(Error::new(
            Code::UnsupportedMediaType,
            format!("Expected exactly one readable {name} header."),
        )),
    }
}

/// Picks the best of `offered` by the `Accept` headers (the first of equals); 406 if none is
/// acceptable.
pub fn negotiate(headers: &HeaderMap, offered: &[Media]) -> Result<Media, Error> {
    let fields: Vec<&str> =
        headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    if !headers.contains_key(ACCEPT) {
        return offered.first().copied().ok_or_else(|| unacceptable(offered));
    }
    let ranges = || fields.iter().flat_map(|field| field.split(',')).filter_map(range);
    let mut best: Option<(Media, f32)> = None;
    for media in offered {
        // The most specific range that covers a type decides on it (RFC 9110, 12.5.1).
        let quality = ranges()
            .filter_map(|(name, quality)| Some((precision(name, *media)?, quality)))
            .max_by_key(|(precision, _)| *precision)
            .map_or(0.0, |(_, quality)| quality);
        if quality > best.map_or(0.0, |(_, best)| best) {
            best = Some((*media, quality));
        }
    }
    best.map(|(media, _)| media).ok_or_else(|| unacceptable(offered))
}

fn range(text: &str) -> Option<(&str, f32)> {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().filter(|name| !name.is_empty())?;
    let quality = parts
        .filter_map(|parameter| parameter.split_once('='))
        .find(|(name, _)| name.trim().eq_ignore_ascii_case("q"))
        .map_or(Some(1.0), |(_, q)| q.trim().parse().ok())?;
    Some((name, quality))
}

fn precision(range: &str, media: Media) -> Option<u8> {
    if range.eq_ignore_ascii_case(media.as_str()) {
        Some(2)
    } else if range.eq_ignore_ascii_case("application/*") {
        Some(1)
    } else {
        (range == "*/*").then_some(0)
    }
}

fn unacceptable(offered: &[Media]) -> Error {
    let names: Vec<_> = offered.iter().map(|media| media.as_str()).collect();
    Error::new(Code::NotAcceptable, format!("This operation answers {}.", names.join(" or ")))
}

/// An operation that answers JSON only.
pub struct AnswersJson;

impl<S: Sync> FromRequestParts<S> for AnswersJson {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        negotiate(&parts.headers, &[Media::Json]).map(|_| Self)
    }
}

/// An operation that answers records, as one JSON document or one record per line.
pub struct AnswersRecords(pub Media);

impl<S: Sync> FromRequestParts<S> for AnswersRecords {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        negotiate(&parts.headers, &[Media::Json, Media::Ndjson]).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::{Media::*, *};

    fn headers(name: HeaderName, values: &[&'static str]) -> HeaderMap {
        values.iter().map(|v| (name.clone(), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn accept() {
        let both: &[Media] = &[Json, Ndjson];
        let table: &[(&[&'static str], &[Media], Option<Media>)] = &[
            (&[], both, Some(Json)),
            (&["*/*"], both, Some(Json)),
            (&["application/*;q=0.1"], both, Some(Json)),
            (&["application/x-ndjson"], both, Some(Ndjson)),
            (&["application/x-ndjson"], &[Json], None),
            (&["application/json;q=0.5, application/x-ndjson"], both, Some(Ndjson)),
            (&["text/html", "Application/JSON; charset=utf-8"], both, Some(Json)),
            (&["*/*, application/json;q=0"], both, Some(Ndjson)),
            (&["*/*, application/json;q=0"], &[Json], None),
            (&["text/html"], both, None),
            (&["application/json;q=x"], both, None),
        ];
        for (values, offered, want) in table {
            let got = negotiate(&headers(ACCEPT, values), offered);
            assert_eq!(got.as_ref().ok(), want.as_ref(), "{values:?}");
            assert!(got.is_ok() || got.unwrap_err().code == Code::NotAcceptable);
        }
    }

    #[test]
    fn accepted_encodings() {
        let table: [(&[&'static str], Encoding); 15] = [
            (&[], Encoding::Identity),
            (&[""], Encoding::Identity),
            (&["identity"], Encoding::Identity),
            (&["gzip"], Encoding::Gzip),
            (&["GZIP"], Encoding::Gzip),
            (&["zstd"], Encoding::Zstd),
            (&["gzip, deflate, br, zstd"], Encoding::Zstd),
            (&["gzip", "zstd"], Encoding::Zstd),
            (&["zstd, gzip;q=0.5"], Encoding::Zstd),
            (&["zstd;q=0.1, gzip;q=0.5"], Encoding::Gzip),
            (&["gzip;q=0"], Encoding::Identity),
            (&["identity, gzip;q=0.5"], Encoding::Identity),
            (&["*"], Encoding::Zstd),
            (&["*, zstd;q=0"], Encoding::Gzip),
            (&["br, gzip;q=x"], Encoding::Identity),
        ];
        for (values, want) in table {
            assert_eq!(accept_encoding(&headers(ACCEPT_ENCODING, values)), want, "{values:?}");
        }
    }

    #[test]
    fn content_types() {
        let table: [(&[&'static str], _); 7] = [
            (&[], Ok(None)),
            (&["application/json"], Ok(Some(Json))),
            (&["Application/Json ; Charset=\"UTF-8\""], Ok(Some(Json))),
            (&["application/json; charset=latin1"], Err(())),
            (&["application/x-ndjson"], Ok(Some(Ndjson))),
            (&["text/plain"], Err(())),
            (&["application/json", "application/json"], Err(())),
        ];
        for (values, want) in table {
            let got = content_type(&headers(CONTENT_TYPE, values), &[Json, Ndjson]);
            assert_eq!(got.map_err(|_| ()), want, "{values:?}");
        }
        assert!(content_type(&headers(CONTENT_TYPE, &["application/x-ndjson"]), &[Json]).is_err());
    }
}
