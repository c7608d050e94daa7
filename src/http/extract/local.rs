//! Who may call a server that asks for no token: programs of its machine, and its own page. A
//! browser there would also send what the pages of strangers ask for: across sites, or to a name of
//! theirs that resolves to this machine (DNS rebinding). Browsers say so, in headers that no page
//! can change.

use axum::{
    extract::Request,
    http::{
        HeaderMap, HeaderValue, Uri,
        header::{HOST, ORIGIN},
        uri::Authority,
    },
    middleware::Next,
    response::{IntoResponse, Response},
};

use crate::{
    broker::Error,
    model::{Code, validation::shown},
};

const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// Refuses what the page of a stranger may have asked a browser for.
pub async fn only_local(request: Request, next: Next) -> Response {
    match judge(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(detail) => Error::new(Code::Forbidden, shown(detail)).into_response(),
    }
}

fn judge(uri: &Uri, headers: &HeaderMap) -> Result<(), String> {
    // HTTP/2 has it in the URI
    let hosts =
        headers.get_all(HOST).iter().map(text).chain(uri.authority().map(Authority::as_str));
    let hosts: Vec<&str> = hosts.collect();
    if let Some(host) = hosts.iter().find(|host| !is_local(host)) {
        return Err(format!(
            "This server asks for no token, so it answers only to names of its own machine, not to \
             `{host}`: call it as localhost, 127.0.0.1 or [::1], or set a token key."
        ));
    }
    let own = |origin: &str| {
        let (_, authority) = origin.split_once("://").unwrap_or_default();
        hosts.iter().any(|host| host.eq_ignore_ascii_case(authority))
    };
    if let Some(origin) = headers.get_all(ORIGIN).iter().map(text).find(|origin| !own(origin)) {
        return Err(format!(
            "This server asks for no token, so it refuses what pages of other origins ask for, \
             such as `{origin}`: use its own page, /docs, or a program, or set a token key."
        ));
    }
    if headers.get_all(SEC_FETCH_SITE).iter().any(|site| site == "cross-site") {
        return Err("This server asks for no token, so it refuses what pages of other sites lead \
                    to: enter the address in the browser, or set a token key."
            .into());
    }
    Ok(())
}

/// What is no text is no name of ours.
fn text(value: &HeaderValue) -> &str {
    value.to_str().unwrap_or("?")
}

/// Whether a name, with or without a port, is one of this machine only.
fn is_local(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(uri: &str, headers: &[(&'static str, &str)]) -> Result<(), String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        judge(&uri.parse().unwrap(), &map)
    }

    #[test]
    fn only_names_of_this_machine_are_answered_to() {
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:9", "127.1.2.3", "[::1]", "[::1]:80"]
        {
            assert_eq!(judged("/v1/topics", &[("host", host)]), Ok(()), "{host}");
            assert_eq!(judged(&format!("http://{host}/"), &[]), Ok(()), "{host}");
        }
        // a program that names none is no browser
        assert_eq!(judged("/", &[]), Ok(()));
        let foreign = [
            "attacker.example",
            "localhost.attacker.example:8080",
            "10.0.0.1",
            "[::2]",
            "localhost@attacker.example",
            "",
            "a b",
            "0.0.0.0:8080",
            "127.0.0.1.nip.io",
        ];
        for host in foreign {
            let told = judged("/", &[("host", host)]).unwrap_err();
            assert!(told.contains(&format!("not to `{host}`: call it as localhost")), "{told}");
        }
        assert!(judged("/", &[("host", "localhost"), ("host", "attacker.example")]).is_err());
        assert!(judged("http://attacker.example/", &[("host", "localhost")]).is_err());
    }

    #[test]
    fn only_its_own_page_is_answered_in_a_browser() {
        let host = ("host", "localhost:8080");
        for headers in [
            &[("origin", "http://localhost:8080"), ("sec-fetch-site", "same-origin")][..],
            &[("origin", "https://LocalHost:8080")],
            &[("sec-fetch-site", "none")],
            &[("sec-fetch-site", "same-site")],
        ] {
            assert_eq!(judged("/", &[&[host], headers].concat()), Ok(()), "{headers:?}");
        }
        for header in [
            ("origin", "http://attacker.example"),
            ("origin", "http://localhost:3000"),
            ("origin", "http://localhost"),
            ("origin", "null"),
            ("origin", ""),
            ("sec-fetch-site", "cross-site"),
        ] {
            let told = judged("/", &[host, header]).unwrap_err();
            assert!(told.contains("or set a token key"), "{told}");
        }
    }
}
