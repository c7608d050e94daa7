//! The client behind proxies.

use std::net::IpAddr;

use axum::http::HeaderMap;
use ipnet::IpNet;

const X_FORWARDED_FOR: &str = "x-forwarded-for";

/// The last address that is not a trusted proxy: of the connection, or as the trusted proxies tell
/// it. What stands before it in the header is the client's own and says nothing.
pub fn client(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    // of a socket for both, an address of IPv4 comes in IPv6
    let peer = peer.to_canonical();
    let is_trusted = |address: &IpAddr| trusted.iter().any(|net| net.contains(address));
    if !is_trusted(&peer) {
        return peer;
    }
    let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
    let told = lines.flat_map(|line| line.to_str().unwrap_or_default().rsplit(','));
    let mut client = peer;
    for address in told.map(|text| text.trim().parse::<IpAddr>()) {
        let Ok(address) = address else { break };
        client = address.to_canonical();
        if !is_trusted(&client) {
            break;
        }
    }
    client
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_that_is_no_proxy_counts() {
        let trusted: Vec<IpNet> = ["10.0.0.0/8", "fd00::/8"].map(|net| net.parse().unwrap()).into();
        // connection, lines of the header, client
        let table: [(&str, &[&str], &str); 9] = [
            ("192.0.2.1", &[], "192.0.2.1"),
            ("192.0.2.1", &["203.0.113.7"], "192.0.2.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.7"], "203.0.113.7"),
            ("::ffff:10.0.0.1", &["1.1.1.1, 203.0.113.7 ,10.1.1.1"], "203.0.113.7"),
            ("fd00::1", &["1.1.1.1", "2001:db8::7, fd00::2"], "2001:db8::7"),
            ("10.0.0.1", &["1.1.1.1, unknown, 10.2.2.2"], "10.2.2.2"),
            ("10.0.0.1", &["10.3.3.3,10.2.2.2"], "10.3.3.3"),
            ("10.0.0.1", &[""], "10.0.0.1"),
        ];
        for (peer, lines, want) in table {
            let mut headers = HeaderMap::new();
            lines.iter().for_each(|line| {
                headers.append(X_FORWARDED_FOR, line.parse().unwrap());
            });
            let got = client(peer.parse().unwrap(), &headers, &trusted);
            assert_eq!(got.to_string(), want, "{peer} {lines:?}");
        }
        let mut headers = HeaderMap::new();
        headers.append(X_FORWARDED_FOR, "203.0.113.7".parse().unwrap());
        assert_eq!(client("10.0.0.1".parse().unwrap(), &headers, &[]).to_string(), "10.0.0.1");
    }
}
