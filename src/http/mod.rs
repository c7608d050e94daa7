//! The HTTP layer: routes, wire types, tokens, problems. It contains no SQL and no rules.
//!
//! A request passes `observe` (request id, metrics, problem documents), then the extractors of
//! `extract` (permission, parameters, body), and reaches one function of `topics`, `settings`,
//! `tenants`, `sessions`, `appends`, `transactions`, `reads`, `groups` or `service`, which calls
//! the broker once and writes the answer.

mod appends;
mod compress;
mod constant;
mod exposition;
pub mod extract;
mod groups;
mod observe;
pub mod openapi;
mod problem;
mod reads;
mod reload;
pub mod server;
mod service;
mod sessions;
mod settings;
mod tenants;
#[cfg(test)]
mod tests;
mod topics;
mod transactions;

use std::sync::{Arc, OnceLock};

use axum::{
    Router,
    http::{Request, Uri, Version, header::HOST},
    middleware,
    routing::get,
};
use ipnet::IpNet;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

pub use extract::access::AppState;
pub use openapi::openapi;

use self::{extract::local::only_local, groups::members, observe::Operations};
use crate::{
    broker::{Budget, Error},
    model::Code,
};

/// A listener, by what it carries; every one answers probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// Everything, where one listener is enough.
    Whole,
    /// What clients call, and the API description unless it is switched off.
    Public { has_docs: bool },
    /// What operators call: metrics, tenants and the API description.
    Admin,
}

/// What is there for operators only.
const METRICS_PATH: &str = "/metrics";
const TENANTS_PATH: &str = "/v1/tenants";

impl Listener {
    fn has_clients(self) -> bool {
        self != Self::Admin
    }

    fn has_operators(self) -> bool {
        !matches!(self, Self::Public { .. })
    }

    fn has_docs(self) -> bool {
        self != Self::Public { has_docs: false }
    }

    /// The listener's name in metrics.
    fn label(self) -> &'static str {
        if self == Self::Admin { "admin" } else { "public" }
    }

    /// Says what to do about a path that this listener does not carry.
    fn nothing_at(self, path: &str) -> Error {
        let tenant = path.strip_prefix(TENANTS_PATH);
        let is_tenant = tenant.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let is_of_operators = path == METRICS_PATH || is_tenant;
        let detail = match self {
            Self::Public { .. } if is_of_operators => {
                "This path is on the admin listener (the setting admin_listen), not on this one."
            }
            Self::Admin if path.starts_with("/v1/") && !is_of_operators => {
                "This path is on the public listener (the setting listen), not on this one."
            }
            Self::Public { has_docs: false } => {
                "This path does not exist; `oncelog openapi` prints those that do."
            }
            _ => "This path does not exist; see /docs, or /openapi.json.",
        };
        Error::new(Code::RouteNotFound, detail)
    }

    /// Every route of this listener.
    fn routes(self) -> OpenApiRouter<AppState> {
        let mut routes = OpenApiRouter::with_openapi(openapi::Document::openapi()).merge(probes());
        if self.has_clients() {
            routes = routes.merge(clients());
        }
        if self.has_operators() {
            routes = routes.merge(operators());
        }
        if self.has_docs() {
            routes = routes.merge(docs());
        }
        routes
    }
}

fn probes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(service::livez)).routes(routes!(service::readyz))
}

fn clients() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(sessions::open_session, sessions::list_sessions))
        .routes(routes!(sessions::get_session, sessions::end::end_session))
        .routes(routes!(sessions::list_session_sequences))
        .routes(routes!(settings::get_settings, settings::patch_settings))
        .routes(routes!(topics::list_topics))
        .routes(routes!(
            topics::put_topic,
            topics::get_topic,
            topics::patch_topic,
            topics::delete_topic
        ))
        .routes(routes!(appends::append_to_topic, reads::topic::read_topic))
        .routes(routes!(reads::topic::read_topic_by_body))
        .routes(routes!(
            appends::append_to_partition,
            reads::read_partition,
            topics::trim_partition
        ))
        .routes(routes!(groups::admin::list_groups))
        .routes(routes!(groups::admin::get_group, groups::admin::delete_group))
        .routes(routes!(groups::reset::reset_group_offsets))
        .routes(routes!(groups::commit_group_offsets, groups::list_group_offsets))
        .routes(routes!(members::join_group))
        .routes(routes!(members::heartbeat))
        .routes(routes!(members::leave_group))
        .routes(routes!(groups::fetch::fetch_group, groups::fetch::fetch_group_by_body))
        .routes(routes!(transactions::begin_transaction, transactions::list_transactions))
        .routes(routes!(transactions::get_transaction))
        .routes(routes!(transactions::append_to_transaction))
        .routes(routes!(transactions::add_offsets_to_transaction))
        .routes(routes!(transactions::prepare_transaction))
        .routes(routes!(transactions::commit_transaction))
        .routes(routes!(transactions::abort_transaction))
}

fn operators() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(tenants::list_tenants))
        .routes(routes!(
            tenants::put_tenant,
            tenants::get_tenant,
            tenants::patch_tenant,
            tenants::delete_tenant
        ))
        .routes(routes!(
            tenants::revocations::revoke_tokens,
            tenants::revocations::list_revocations
        ))
        .routes(routes!(tenants::revocations::remove_revocation))
        .routes(routes!(service::metrics))
}

fn docs() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(service::openapi_json))
        .routes(routes!(openapi::page::docs))
        .routes(routes!(openapi::page::docs_file))
        .routes(routes!(openapi::page::guides::docs_guide))
        .route("/docs/", get(openapi::page::docs_slash))
        .route("/", get(openapi::page::root))
}

/// Builds the router of a listener.
pub fn router(state: AppState, listener: Listener) -> Router {
    let (routes, _) = listener.routes().split_for_parts();
    let answers = state.answers();
    let needs_no_token = state.needs_no_token();
    let nothing = move |uri: Uri| async move { listener.nothing_at(uri.path()) };
    let mut routes = routes.with_state(state).fallback(nothing);
    if needs_no_token {
        routes = routes.layer(middleware::from_fn(only_local));
    }
    layered(routes, Operations::of(&openapi()), answers)
}

/// What a listener answers: that the replica is starting, until there is a router that serves.
#[derive(Clone)]
pub struct Routers {
    listener: Listener,
    starting: Router,
    /// Answers who speaks HTTP where HTTPS is spoken.
    https_only: Router,
    /// Answers what does not say for which host it is: proxies in between could differ about it
    /// (RFC 9112, 3.2).
    misaddressed: Router,
    serving: Arc<OnceLock<Router>>,
}

impl Routers {
    pub fn starting(listener: Listener) -> Self {
        let routes = Router::new()
            .route("/livez", get(service::livez))
            .route("/readyz", get(service::starting));
        let routes = routes.fallback(service::starting);
        let refusing = |detail: &'static str| {
            Router::new().fallback(async move || Error::new(Code::InvalidRequest, detail))
        };
        let [starting, https_only, misaddressed] = [
            routes,
            refusing("This port speaks HTTPS: begin the URL with https://."),
            refusing("A request of HTTP/1.1 has exactly one Host header."),
        ]
        .map(|routes| layered(routes, Operations::of(&openapi()), Budget::new(0)));
        Self { listener, starting, https_only, misaddressed, serving: Arc::default() }
    }

    /// From now on the routes of the listener answer, also on open connections.
    pub fn serve(&self, state: AppState) {
        let _ = self.serving.set(router(state, self.listener));
    }

    /// Who answers a request, by its head.
    fn answering<B>(&self, request: &Request<B>, is_plain_in_tls: bool) -> Router {
        let hosts = request.headers().get_all(HOST).iter().count();
        let router = if is_plain_in_tls {
            &self.https_only
        } else if request.version() == Version::HTTP_11 && hosts != 1 {
            &self.misaddressed
        } else {
            self.serving.get().unwrap_or(&self.starting)
        };
        router.clone()
    }
}

impl From<Router> for Routers {
    fn from(router: Router) -> Self {
        let routers = Self::starting(Listener::Whole);
        let _ = routers.serving.set(router);
        routers
    }
}

/// Layers, from the inside out: panics become responses, refusals become problems, responses are
/// compressed.
fn layered(routes: Router, operations: Operations, answers: Budget) -> Router {
    routes
        .layer(CatchPanicLayer::custom(observe::panicked))
        .layer(middleware::from_fn_with_state(Arc::new(operations), observe::observe))
        .layer(middleware::from_fn_with_state(answers, compress::compress))
}

/// Per-replica limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest request body, decompressed.
    pub max_body_bytes: usize,
    /// How long a body, or its next 30 KiB, may take to arrive.
    pub body_timeout_ms: u64,
    /// Memory for all request bodies together.
    pub max_in_flight_bytes: usize,
    /// How long a request head may take to arrive.
    pub header_timeout_ms: u64,
    /// How long a connection may wait for its next request.
    pub keep_alive_timeout_ms: u64,
    /// How long a client may take nothing of an answer.
    pub answer_timeout_ms: u64,
    /// The age at which a connection is asked to end; 0: none.
    pub max_connection_age_ms: u64,
    /// The largest request head.
    pub max_header_bytes: usize,
    /// Maximum number of connections; more of them wait to be accepted.
    pub max_connections: usize,
    /// Networks of proxies whose X-Forwarded-For has the client's address.
    pub trusted_proxies: Vec<IpNet>,
    /// How long a shutdown waits for requests in flight.
    pub drain_timeout_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 16 << 20,
            body_timeout_ms: 30_000,
            max_in_flight_bytes: 256 << 20,
            header_timeout_ms: 10_000,
            keep_alive_timeout_ms: 75_000,
            answer_timeout_ms: 30_000,
            max_connection_age_ms: 3_600_000,
            max_header_bytes: 64 << 10,
            max_connections: 20_000,
            trusted_proxies: Vec::new(),
            drain_timeout_ms: 25_000,
        }
    }
}
