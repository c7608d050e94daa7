//! TLS: the certificate of a listener, the certificates of its clients, and handshakes.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::aws_lc_rs::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout_at},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::{http::reload::Reloaded, telemetry};

/// Where the certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain of the listener's certificate, the certificate itself first; PEM.
    pub cert: PathBuf,
    /// Its private key; PEM.
    pub key: PathBuf,
    /// The authorities of clients' certificates, if clients must show one; PEM.
    pub client_ca: Option<PathBuf>,
}

/// Accepts TLS connections, by the certificates of now.
#[derive(Clone)]
pub struct Tls(Reloaded<ServerConfig>);

/// What a peer speaks.
pub enum Accepted {
    Tls(Box<TlsStream<TcpStream>>),
    /// HTTP without TLS: somebody has forgotten the `s` of `https`.
    Plain(TcpStream),
}

impl Tls {
    /// Err: the files are not there, or do not fit together.
    pub fn start(files: &TlsFiles) -> Result<Self, String> {
        let paths = [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()];
        let (named, paths) = (files.clone(), paths.into_iter().flatten().cloned().collect());
        let parse = move |contents: &[Vec<u8>]| configuration(&named, contents);
        Reloaded::start("tls", paths, parse).map(Self)
    }

    /// None: the handshake failed or took too long, which is counted.
    pub async fn accept(&self, stream: TcpStream, deadline: Instant) -> Option<Accepted> {
        let outcome = timeout_at(deadline, self.handshake(stream)).await;
        let label = match &outcome {
            Ok(Ok(Accepted::Tls(_))) => "ok",
            Ok(Ok(Accepted::Plain(_))) => "plain_http",
            Ok(Err(_)) => "failed",
            Err(_) => "timeout",
        };
        metrics::counter!(telemetry::TLS_HANDSHAKES_TOTAL, "outcome" => label).increment(1);
        match outcome.ok()? {
            Ok(accepted) => Some(accepted),
            Err(error) => {
                tracing::debug!(%error, "a TLS handshake failed");
                None
            }
        }
    }

    async fn handshake(&self, stream: TcpStream) -> io::Result<Accepted> {
        let mut first = [0];
        let count = stream.peek(&mut first).await?;
        // a method's name; TLS begins with a byte below all letters
        if first[..count].iter().all(u8::is_ascii_uppercase) && count > 0 {
            return Ok(Accepted::Plain(stream));
        }
        let accepted = TlsAcceptor::from(self.0.current()).accept(stream).await?;
        Ok(Accepted::Tls(Box::new(accepted)))
    }
}

fn configuration(files: &TlsFiles, contents: &[Vec<u8>]) -> Result<ServerConfig, String> {
    let [cert, key, rest @ ..] = contents else { return Err("no certificate".into()) };
    let chain = certificates(&files.cert, cert)?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| format!("{} is no private key in PEM: {error}", files.key.display()))?;
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match files.client_ca.as_ref().zip(rest.first()) {
        None => builder.with_no_client_auth(),
        Some((path, authorities)) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(path, authorities)? {
                roots.add(authority).map_err(|error| format!("{}: {error}", path.display()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = verifier.build();
            builder.with_client_cert_verifier(
                verifier.map_err(|error| format!("{}: {error}", path.display()))?,
            )
        }
    };
    let mut configuration = builder.with_single_cert(chain, key).map_err(|error| {
        format!("{} and {}: {error}", files.cert.display(), files.key.display())
    })?;
    configuration.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(configuration)
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(format!("{} has no certificate in PEM", path.display())),
        Err(error) => Err(format!("{} is no PEM: {error}", path.display())),
    }
}
