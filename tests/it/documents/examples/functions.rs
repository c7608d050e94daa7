//! One request in, one transaction out: an event is recorded once, however often it is delivered.

use futures_util::future::join_all;
use rand::{SeedableRng, rngs::StdRng};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::process::Child;
use uuid::Uuid;

use super::{languages::Language, read_all};
use crate::{
    history::crash::fixed_port,
    support::served::{Answer, Client, Served, until},
};

/// An instance of the function.
struct Function {
    client: Client,
    _child: Child,
}

impl Function {
    async fn start(language: Language, url: &str) -> Self {
        let port = fixed_port(&mut StdRng::from_rng(&mut rand::rng()));
        let mut command = language.command("function").await;
        command.env("ONCELOG_URL", url).env("PORT", port.to_string());
        let child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
        let client = Client::new(&format!("http://127.0.0.1:{port}"), None);
        let listens = async || client.send(Method::POST, "/", &[], None).await.ok();
        let answer = until("the function to listen", listens).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        Self { client, _child: child }
    }

    async fn deliver(&self, event: &Value) -> Answer {
        self.client.post("/", event).await
    }
}

/// Senders have ids of all forms.
fn event(number: usize) -> Value {
    let id = match number % 3 {
        0 => Uuid::now_v7().to_string(),
        1 => format!("evt_{number}"),
        _ => format!("Zürich/{number} & ☃"),
    };
    json!({"id": id, "customer": format!("customer-{number}"), "total": 12.5})
}

async fn function(language: Language) {
    const EVENTS: usize = 20;
    let mut served = Served::alone().await;
    served.client.put_topic("orders", 1).await;
    served.client.put_topic("audit", 1).await;
    let url = served.client.url.clone();
    let instances = [Function::start(language, &url).await, Function::start(language, &url).await];
    let events: Vec<Value> = (0..EVENTS).map(event).collect();
    for event in &events {
        let deliveries = [0, 1, 0, 1].map(|instance: usize| instances[instance].deliver(event));
        let answers = join_all(deliveries).await;
        let mut first = answers.iter().filter(|answer| answer.status == 201);
        assert_eq!(first.next().unwrap().json()["duplicate"], false);
        assert!(first.next().is_none(), "{answers:?}");
        for answer in answers.iter().filter(|answer| answer.status != 201) {
            assert_eq!(answer.ok(200)["duplicate"], true);
        }
    }
    // it remembers nothing: another one knows as much
    drop(instances);
    let function = Function::start(language, &url).await;
    for event in &events {
        assert_eq!(function.deliver(event).await.ok(200)["duplicate"], true);
    }
    let mut changed = events[0].clone();
    changed["total"] = json!(0);
    let code = |answer: &Answer| (answer.status, answer.json()["code"].clone());
    assert_eq!(code(&function.deliver(&changed).await), (422, json!("idempotency_key_reused")));
    changed["id"] = json!("01809b1e-0000-7000-8000-000000000001");
    assert_eq!(code(&function.deliver(&changed).await), (410, json!("idempotency_key_expired")));
    changed["id"] = json!(null);
    assert_eq!(code(&function.deliver(&changed).await), (400, json!("invalid_request")));
    let recorded = events.iter().map(|event| json!({"key": event["customer"], "value": event}));
    assert_eq!(read_all(&served.client, "orders", 0).await, recorded.collect::<Vec<_>>());
    let noted = events.iter().map(|event| json!({"key": null, "value": {"ordered": event["id"]}}));
    assert_eq!(read_all(&served.client, "audit", 0).await, noted.collect::<Vec<_>>());
    // no answer is no answer to rely on
    served.shut_down().await;
    assert_eq!(function.deliver(&event(EVENTS)).await.status, 503);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_in_python_records_an_event_once() {
    function(Language::Python).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_in_typescript_records_an_event_once() {
    function(Language::TypeScript).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_in_go_records_an_event_once() {
    function(Language::Go).await;
}
