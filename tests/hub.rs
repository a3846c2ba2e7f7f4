//! Models by their name on the hub, against a server of this test's own.
#![cfg(feature = "hub")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use lapidary::hub::{HubError, HubId, HubParams, Progress, fetch};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// One request as the server saw it: path, the byte it starts at, the token.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    path: String,
    from: usize,
    token: Option<String>,
}

/// What the server holds, and how it misbehaves.
#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    listing: Value,
    /// Answers that break off in the middle.
    breaks: usize,
    /// Whether it knows how to begin in the middle.
    ranges: bool,
    seen: Vec<Seen>,
}

struct Server {
    address: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    fn start(files: &[(&str, &[u8])]) -> Self {
        let files: BTreeMap<String, Vec<u8>> =
            files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        let sibling = |(name, bytes): (&String, &Vec<u8>)| {
            let sha: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            let lfs = name.ends_with(".safetensors").then(|| json!({"sha256": sha, "size": bytes.len()}));
            json!({"rfilename": name, "size": bytes.len(), "lfs": lfs})
        };
        let listing = json!({"sha": COMMIT, "siblings": files.iter().map(sibling).collect::<Vec<_>>()});
        let state = State { files, listing, ranges: true, ..State::default() };
        let state = Arc::new(Mutex::new(state));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &mut shared.lock().unwrap());
            }
        });
        Self { address, state }
    }

    fn params(&self, cache: &Path) -> HubParams {
        HubParams { endpoint: self.address.clone(), token: Some("secret".into()), cache: cache.into() }
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.lock().unwrap().seen)
    }
}

fn answer(mut stream: TcpStream, state: &mut State) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
    let path = lines.next().unwrap().split(' ').nth(1).unwrap().to_owned();
    let headers: BTreeMap<String, String> = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())))
        .collect();
    let from = headers.get("range").map_or(0, |range| {
        range.strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap().parse::<usize>().unwrap()
    });
    state.seen.push(Seen { path: path.clone(), from, token: headers.get("authorization").cloned() });
    let listing = state.listing.to_string().into_bytes();
    let body = match path.split_once("/resolve/") {
        Some((_, rest)) => state.files.get(rest.split_once('/').unwrap().1),
        None if path.starts_with("/api/models/org/name/revision/main") => Some(&listing),
        None => None,
    };
    let mut send = |status: &str, headers: &str, length: usize, body: &[u8]| {
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).unwrap();
    };
    match body {
        None => send("404 Not Found", "", 0, b""),
        Some(body) => {
            let ranged = from > 0 && state.ranges;
            let rest = if ranged { &body[from..] } else { &body[..] };
            let broken = path.contains("/resolve/") && state.breaks > 0;
            state.breaks -= usize::from(broken);
            let shown = if broken { &rest[..rest.len() / 2] } else { rest };
            let range = format!("Content-Range: bytes {from}-{}/{}\r\n", body.len() - 1, body.len());
            match ranged {
                true => send("206 Partial Content", &range, rest.len(), shown),
                false => send("200 OK", "", rest.len(), shown),
            }
        }
    }
}

fn id(text: &str) -> HubId {
    HubId::parse(text).unwrap()
}

const FILES: [(&str, &[u8]); 4] = [
    ("config.json", b"{}"),
    ("README.md", b"words"),
    ("model.safetensors", &[7; 100_000]),
    ("tokenizer.json", b"{\"a\": 1}"),
];

fn quiet(_: Progress) {}

#[test]
fn a_model_is_fetched_once_and_whole() {
    let server = Server::start(&FILES);
    let cache = tempfile::tempdir().unwrap();
    let last = RefCell::new(BTreeMap::new());
    let observe = |progress: Progress| {
        if let Progress::File { name, here, size } = progress {
            last.borrow_mut().insert(name.to_owned(), (here, size));
        }
    };
    let folder = fetch(&id("org/name"), &server.params(cache.path()), &observe).unwrap();
    assert_eq!(folder, cache.path().join("org--name").join(COMMIT));
    for (name, bytes) in FILES.iter().filter(|(name, _)| *name != "README.md") {
        assert_eq!(fs::read(folder.join(name)).unwrap(), *bytes);
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
    assert_eq!(last.borrow()["model.safetensors"], (100_000, 100_000));
    let seen = server.seen();
    assert_eq!(seen[0].path, "/api/models/org/name/revision/main?blobs=true");
    assert!(seen.iter().all(|seen| seen.token.as_deref() == Some("Bearer secret")), "{seen:?}");
    // The branch is asked for again, its files are not; a commit needs no question.
    fetch(&id("org/name"), &server.params(cache.path()), &quiet).unwrap();
    assert_eq!(server.seen().len(), 1);
    fetch(&id(&format!("org/name@{COMMIT}")), &server.params(cache.path()), &quiet).unwrap();
    assert_eq!(server.seen(), []);
}

#[test]
fn a_broken_download_continues_where_it_stopped() {
    let server = Server::start(&FILES[2..3]);
    let cache = tempfile::tempdir().unwrap();
    server.set(|state| state.breaks = 2);
    let folder = fetch(&id("org/name"), &server.params(cache.path()), &quiet).unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), FILES[2].1);
    let starts: Vec<usize> = server.seen().iter().skip(1).map(|seen| seen.from).collect();
    assert_eq!(starts, [0, 50_000, 75_000]);

    // When it gives up, what came stays for the next run.
    let cache = tempfile::tempdir().unwrap();
    server.set(|state| state.breaks = 1000);
    let error = fetch(&id("org/name"), &server.params(cache.path()), &quiet).unwrap_err();
    assert!(matches!(error, HubError::Incomplete { expected: 100_000, .. }), "{error}");
    let folder = cache.path().join("org--name").join(COMMIT);
    assert!(!folder.join("model.safetensors").exists());
    let came = fs::metadata(folder.join("model.safetensors.part")).unwrap().len() as usize;
    assert!(came > 90_000, "{came}");
    server.set(|state| state.breaks = 0);
    server.seen();
    fetch(&id("org/name"), &server.params(cache.path()), &quiet).unwrap();
    assert_eq!(server.seen()[1].from, came);
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), FILES[2].1);

    // A server without ranges sends everything again.
    let cache = tempfile::tempdir().unwrap();
    server.set(|state| (state.breaks, state.ranges) = (1, false));
    let folder = fetch(&id("org/name"), &server.params(cache.path()), &quiet).unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), FILES[2].1);
}

#[test]
fn what_is_not_what_was_announced_is_refused() {
    let server = Server::start(&FILES[2..3]);
    let cache = tempfile::tempdir().unwrap();
    let error = |state: &dyn Fn(&mut State)| {
        server.set(|held| state(held));
        fetch(&id("org/name"), &server.params(cache.path()), &quiet).unwrap_err().to_string()
    };
    let damaged = error(&|state| state.files.get_mut("model.safetensors").unwrap()[500] = 8);
    assert!(damaged.contains("SHA-256") && damaged.contains("model.safetensors"), "{damaged}");
    let long = error(&|state| state.files.get_mut("model.safetensors").unwrap().push(7));
    assert!(long.contains("100001 bytes of 100000"), "{long}");
    let short = error(&|state| state.files.get_mut("model.safetensors").unwrap().truncate(90_000));
    assert!(short.contains("90000 bytes of 100000"), "{short}");
    let folder = cache.path().join("org--name").join(COMMIT);
    assert!(!folder.join("model.safetensors").exists());
    let unsized_ = error(&|state| state.listing["siblings"][0]["size"] = Value::Null);
    assert!(unsized_.contains("gives it no size"), "{unsized_}");
    let away = error(&|state| state.listing["sha"] = "../../x".into());
    assert!(away.contains("forty hexadecimal digits"), "{away}");
    let no_list = error(&|state| state.listing = json!([]));
    assert!(no_list.contains("no list of files"), "{no_list}");
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 1);
}

#[test]
fn without_the_hub_the_cache_serves_or_the_way_by_hand_is_told() {
    let server = Server::start(&FILES);
    let cache = tempfile::tempdir().unwrap();
    let missing = fetch(&id("org/other"), &server.params(cache.path()), &quiet).unwrap_err().to_string();
    assert!(missing.contains("says 404") && missing.contains("HF_TOKEN"), "{missing}");
    let folder = fetch(&id("org/name"), &server.params(cache.path()), &quiet).unwrap();

    // A port that nobody listens on.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gone = HubParams { endpoint: format!("http://{free}"), ..server.params(cache.path()) };
    let told = RefCell::new(String::new());
    let observe = |progress: Progress| {
        if let Progress::Offline { commit, .. } = progress {
            *told.borrow_mut() = commit.to_owned();
        }
    };
    assert_eq!(fetch(&id("org/name"), &gone, &observe).unwrap(), folder);
    assert_eq!(*told.borrow(), COMMIT);
    let error = fetch(&id("org/name@v2"), &gone, &quiet).unwrap_err().to_string();
    for part in
        ["cannot be reached", "is not in the cache", "hf download org/name --revision v2 --local-dir name"]
    {
        assert!(error.contains(part), "{error}");
    }
    // Half a model is none.
    fs::remove_file(folder.join("tokenizer.json")).unwrap();
    assert!(matches!(fetch(&id("org/name"), &gone, &quiet), Err(HubError::Offline { .. })));
}

#[test]
fn an_update_that_breaks_off_leaves_the_older_commit() {
    let server = Server::start(&FILES[2..3]);
    let cache = tempfile::tempdir().unwrap();
    let older = fetch(&id("org/name"), &server.params(cache.path()), &quiet).unwrap();
    let newer = COMMIT.replace('0', "f");
    server.set(|state| (state.listing["sha"], state.breaks) = (newer.as_str().into(), 1000));
    let error = fetch(&id("org/name"), &server.params(cache.path()), &quiet).unwrap_err();
    assert!(matches!(error, HubError::Incomplete { .. }), "{error}");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gone = HubParams { endpoint: format!("http://{free}"), ..server.params(cache.path()) };
    assert_eq!(fetch(&id("org/name"), &gone, &quiet).unwrap(), older);
    // Once it is whole, the newer one serves.
    server.set(|state| state.breaks = 0);
    let fetched = fetch(&id("org/name"), &server.params(cache.path()), &quiet).unwrap();
    assert_eq!(fetched, cache.path().join("org--name").join(newer));
    assert_eq!(fetch(&id("org/name"), &gone, &quiet).unwrap(), fetched);
}

#[test]
fn every_command_takes_a_name_on_the_hub() {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/tiny");
    let names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    let files = names.map(|name| fs::read(tiny.join(name)).unwrap());
    let files: Vec<(&str, &[u8])> = names.into_iter().zip(files.iter().map(Vec::as_slice)).collect();
    let server = Server::start(&files);
    let cache = tempfile::tempdir().unwrap();
    let generate = |name: &str| {
        let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_lapidary"));
        command.args(["generate", name, "-p", "Three days after Monday is", "-n", "1"]);
        command
            .env("HF_ENDPOINT", &server.address)
            .env("HF_TOKEN", "abc")
            .env("LAPIDARY_CACHE", cache.path());
        command.env("NO_PROXY", "127.0.0.1");
        command
    };
    for _ in 0..2 {
        generate("org/name").assert().success().stdout("Three days after Monday is Thursday\n");
    }
    let asked = server.seen();
    assert_eq!(asked.len(), 1 + names.len() + 1);
    assert!(asked.iter().all(|seen| seen.token.as_deref() == Some("Bearer abc")));
    let output = generate("org/other").assert().failure().get_output().clone();
    assert!(
        String::from_utf8(output.stderr).unwrap().contains("org/other: there is no such file or folder here")
    );
}
