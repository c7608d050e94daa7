//! `oncelog context`: named servers, and which one a command calls with which token.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
};

use serde_json::json;

use super::{oncelog, run, run_with};

/// A server that has no topics, and what it was sent with each request: its token.
fn listening() -> (String, Arc<Mutex<Vec<Option<String>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, tokens) = (listener.local_addr().unwrap(), Arc::default());
    let seen: Arc<Mutex<Vec<Option<String>>>> = Arc::clone(&tokens);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut head) = (stream.unwrap(), Vec::new());
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if stream.read(&mut byte).unwrap() == 0 {
                    break;
                }
                head.extend(byte);
            }
            let head = String::from_utf8(head).unwrap();
            let token = head.lines().find_map(|line| line.strip_prefix("authorization: Bearer "));
            seen.lock().unwrap().push(token.map(str::to_owned));
            let body = r#"{"topics":[],"tenants":[],"next_after":null}"#;
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    (address.to_string(), tokens)
}

/// A command of a user whose configuration is in this directory.
fn of_user(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = oncelog(arguments);
    command.env("XDG_CONFIG_HOME", directory);
    command
}

#[tokio::test]
async fn contexts_are_set_listed_used_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let context = async |arguments: &[&str]| {
        run(of_user(directory.path(), &[&["context"], arguments].concat())).await
    };
    let told = async |arguments: &[&str]| {
        let output = context(arguments).await;
        assert!(output.lines().is_empty());
        output.stderr
    };
    assert!(context(&["list"]).await.lines().is_empty());
    let none = context(&["show"]).await;
    assert!(none.failed(1).contains("`oncelog context use NAME` chooses one"), "{none:?}");
    let unknown = context(&["set", "local"]).await;
    assert!(unknown.failed(2).contains("context local is new: give its --url"), "{unknown:?}");
    let first = told(&["set", "local", "--url", "localhost:8080"]).await;
    assert_eq!(first, "oncelog: set context local, which commands now use\n");
    let set = ["context", "set", "prod", "--url", "https://log.example/a", "--token", "-"];
    let set = run_with(of_user(directory.path(), &set), "sesame\n").await;
    assert_eq!((&*set.stdout, &*set.stderr), ("", "oncelog: set context prod\n"));
    let local = json!({"context": "local", "url": "http://localhost:8080/", "admin_url": null,
        "has_token": false, "current": true});
    let prod = json!({"context": "prod", "url": "https://log.example/a", "admin_url": null,
        "has_token": true, "current": false});
    assert_eq!(context(&["list"]).await.lines(), [local.clone(), prod.clone()]);
    assert_eq!(context(&["show"]).await.lines(), [local]);
    assert_eq!(context(&["show", "prod"]).await.lines(), [prod]);
    let mut by_variable = of_user(directory.path(), &["context", "show"]);
    by_variable.env("ONCELOG_CONTEXT", "prod");
    assert_eq!(run(by_variable).await.lines()[0]["context"], "prod");

    let file = directory.path().join("oncelog/contexts.json");
    let mode = fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert!(fs::read_to_string(&file).unwrap().contains("sesame"));

    assert_eq!(told(&["use", "prod"]).await, "oncelog: commands now use context prod\n");
    assert_eq!(context(&["show"]).await.lines()[0]["context"], "prod");
    let misspelt = context(&["use", "prd"]).await;
    assert!(misspelt.failed(1).contains("no context prd; there are local, prod"), "{misspelt:?}");
    told(&["set", "prod", "--admin-url", "10.0.0.7:8081"]).await;
    let admin_url = async || context(&["show"]).await.lines()[0]["admin_url"].clone();
    assert_eq!(admin_url().await, "http://10.0.0.7:8081/");
    told(&["set", "prod", "--token", "sesame"]).await;
    assert_eq!(admin_url().await, "http://10.0.0.7:8081/");
    // neither a token nor an admin listener is kept for another server
    told(&["set", "prod", "--url", "https://log.example/b"]).await;
    assert_eq!(context(&["show"]).await.lines()[0]["has_token"], false);
    assert_eq!(admin_url().await, json!(null));
    let removed = told(&["remove", "prod"]).await;
    assert_eq!(removed, "oncelog: removed context prod; commands now use no context\n");
    assert!(!fs::read_to_string(&file).unwrap().contains("sesame"));
    told(&["use", "local"]).await;
    told(&["use", "--none"]).await;
    assert_eq!(context(&["list"]).await.lines()[0]["current"], false);
}

#[tokio::test]
async fn a_context_names_the_server_and_its_token_and_is_overridden() {
    let directory = tempfile::tempdir().unwrap();
    let ((here, here_saw), (there, there_saw)) = (listening(), listening());
    for set in [
        &["context", "set", "here", "--url", &here, "--token", "sesame"][..],
        &["context", "set", "there", "--url", &there, "--token", "thyme"],
    ] {
        assert_eq!(run(of_user(directory.path(), set)).await.stdout, "");
    }
    let of_topics = ["topic", "list"];
    let sent = async |arguments: &[&str], variables: &[(&str, &str)]| {
        let arguments = if arguments.first() == Some(&"tenant") {
            arguments.to_vec()
        } else {
            [&of_topics[..], arguments].concat()
        };
        let mut command = of_user(directory.path(), &arguments);
        command.envs(variables.iter().copied());
        run(command).await.lines();
        let mut here: Vec<_> = std::mem::take(&mut *here_saw.lock().unwrap());
        let mut there: Vec<_> = std::mem::take(&mut *there_saw.lock().unwrap());
        assert_eq!(here.len() + there.len(), 1, "one request");
        let token = |token: Option<String>| token.unwrap_or_default();
        match here.pop() {
            Some(seen) => format!("here {}", token(seen)),
            None => format!("there {}", token(there.pop().unwrap())),
        }
    };
    let (here, there) = (here.as_str(), there.as_str());
    assert_eq!(sent(&[], &[]).await, "here sesame");
    assert_eq!(sent(&["--context", "there"], &[]).await, "there thyme");
    assert_eq!(sent(&[], &[("ONCELOG_CONTEXT", "there")]).await, "there thyme");
    assert_eq!(sent(&["--context", "here"], &[("ONCELOG_CONTEXT", "there")]).await, "here sesame");
    assert_eq!(sent(&[], &[("ONCELOG_TOKEN", "mint")]).await, "here mint");
    // a token goes to its own server only
    assert_eq!(sent(&["--url", there], &[]).await, "there ");
    assert_eq!(sent(&[], &[("ONCELOG_URL", there)]).await, "there ");
    assert_eq!(sent(&["--url", there, "--context", "here"], &[]).await, "there ");
    assert_eq!(sent(&["--url", here], &[]).await, "here sesame");
    assert_eq!(sent(&["--url", there, "--token", "mint"], &[]).await, "there mint");
    // empty variables count as unset
    let empty = [("ONCELOG_URL", ""), ("ONCELOG_TOKEN", ""), ("ONCELOG_CONTEXT", "")];
    assert_eq!(sent(&[], &empty).await, "here sesame");

    // tenants are on the admin listener
    let tenants = ["tenant", "list"];
    assert_eq!(sent(&tenants, &[]).await, "here sesame");
    assert_eq!(sent(&[&tenants[..], &["--url", there]].concat(), &[]).await, "there ");
    assert_eq!(sent(&[&tenants[..], &["--admin-url", there]].concat(), &[]).await, "there ");
    assert_eq!(sent(&["tenant", "--admin-url", there, "list"], &[]).await, "there ");
    let set = ["context", "set", "here", "--admin-url", there];
    assert_eq!(run(of_user(directory.path(), &set)).await.stdout, "");
    assert_eq!(sent(&[], &[]).await, "here sesame");
    assert_eq!(sent(&tenants, &[]).await, "there sesame");
    assert_eq!(sent(&tenants, &[("ONCELOG_ADMIN_URL", here)]).await, "here sesame");
    assert_eq!(sent(&tenants, &[("ONCELOG_ADMIN_URL", "")]).await, "there sesame");
    assert_eq!(sent(&["tenant", "list", "--context", "there"], &[]).await, "there thyme");

    let file = directory.path().join("oncelog/contexts.json");
    fs::write(&file, "{\"contexts\": \"sesame\"}").unwrap();
    let broken = run(of_user(directory.path(), &["topic", "list"])).await;
    let told = broken.failed(1);
    assert!(told.contains("is not a file of contexts, at line 1") && !told.contains("sesame"));
    assert_eq!(sent(&["--url", there, "--token", "mint"], &[]).await, "there mint");
}
