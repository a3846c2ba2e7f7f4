//! Conversations: a real model's template, and `generate` as a process.

mod common;

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use lapidary::model::{Checkpoint, Ending, Message, Role};
use serde_json::Value;

#[test]
fn smollm2_reads_chatml() {
    let Some(path) = common::smollm2() else { return };
    let checkpoint = Checkpoint::open(path).unwrap();
    let tokenizer = checkpoint.tokenizer().unwrap();
    let chat = checkpoint.chat(&tokenizer).unwrap();
    let user = Message::new(Role::User, "Say hello to the captain.");
    let system = Message::new(Role::System, "You are a pirate.");
    let text = chat.render(&[system.clone(), user.clone()], Ending::Answer).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nYou are a pirate.<|im_end|>\n<|im_start|>user\nSay hello to the captain.<|im_end|>\n<|im_start|>assistant\n"
    );
    let ids = [
        1, 9690, 198, 2683, 359, 253, 30820, 30, 2, 198, 1, 4093, 198, 36218, 33662, 288, 260, 20222, 30, 2,
        198, 1, 520, 9531, 198,
    ];
    assert_eq!(tokenizer.encode(&text).unwrap(), ids);
    // Its own system turn where there is none, and a whole exchange.
    let exchange = [user, Message::new(Role::Assistant, "Ahoy!")];
    assert_eq!(
        chat.render(&exchange, Ending::Message).unwrap(),
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\nSay hello to the captain.<|im_end|>\n<|im_start|>assistant\nAhoy!<|im_end|>\n"
    );
    assert_eq!(chat.end_of_turn(&tokenizer), tokenizer.token_id("<|im_end|>"));
    assert!(checkpoint.ends(&tokenizer).contains(&2));
}

#[test]
fn smollm2_answers_and_stops() {
    let Some(path) = common::smollm2() else { return };
    let answer = json(
        &generate(&path)
            .args(["--chat", "-p", "What is the capital of France?", "--json"])
            .output()
            .unwrap()
            .stdout,
    );
    assert_eq!(answer["text"], "The capital of France is Paris.");
    assert_eq!((&answer["stop"], &answer["stop_token"]), (&"end".into(), &"<|im_end|>".into()));
    // Both turns of one conversation: "And of Italy?" means nothing without the first.
    let turns = generate(&path)
        .arg("--chat")
        .write_stdin("What is the capital of France?\n\nAnd of Italy?\n")
        .assert()
        .success();
    let text = String::from_utf8(turns.get_output().stdout.clone()).unwrap();
    assert_eq!(text, "The capital of France is Paris.\nThe capital of Italy is Rome.\n");
}

fn generate(model: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lapidary"));
    command.arg("generate").arg(model);
    command
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

/// The embedded model with this template.
fn with_template(template: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(common::tiny(name), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    folder
}

#[test]
fn json_tells_what_was_written() {
    let prompt = "Three days after Monday is";
    let args = ["-p", prompt, "-n", "5"];
    let plain = generate(&common::tiny("")).args(args).assert().success().get_output().stdout.clone();
    let told =
        json(&generate(&common::tiny("")).args(args).arg("--json").assert().success().get_output().stdout);
    assert_eq!(String::from_utf8(plain).unwrap(), format!("{prompt}{}\n", told["text"].as_str().unwrap()));
    let tokenizer = Checkpoint::open(common::tiny("")).unwrap().tokenizer().unwrap();
    let ids = |key: &str| -> Vec<u32> { serde_json::from_value(told[key].clone()).unwrap() };
    assert_eq!(ids("prompt_tokens"), tokenizer.encode(prompt).unwrap());
    let all = [ids("prompt_tokens"), ids("tokens")].concat();
    assert_eq!(tokenizer.decode(&all).unwrap(), format!("{prompt}{}", told["text"].as_str().unwrap()));
    assert_eq!((ids("tokens").len(), &told["stop"], &told["stop_token"]), (5, &"limit".into(), &Value::Null));
    assert_eq!((&told["seed"], &told["device"]), (&0.into(), &"host".into()));
    assert!(
        told["model"].as_str().unwrap().ends_with("tiny")
            || told["model"].as_str().unwrap().ends_with("tiny/")
    );
    for key in ["seconds", "tokens_per_second", "prompt_tokens_per_second"] {
        assert!(told[key].as_f64().unwrap() > 0.0, "{key}");
    }
}

#[test]
fn a_conversation_is_what_the_template_makes_of_it() {
    let folder = with_template("{% for m in messages %}{{ m.content }}{% endfor %}");
    let args = ["--chat", "--system", "Three days after ", "-p", "Monday is", "-n", "5", "--json"];
    let chat = json(&generate(folder.path()).args(args).assert().success().get_output().stdout);
    let plain = ["-p", "Three days after Monday is", "-n", "5", "--json"];
    let plain = json(&generate(folder.path()).args(plain).assert().success().get_output().stdout);
    assert_eq!((&chat["prompt_tokens"], &chat["text"]), (&plain["prompt_tokens"], &plain["text"]));
}

#[test]
fn what_makes_no_conversation_is_said() {
    let refuses = with_template("{{ raise_exception('Only on Sundays') }}");
    let broken = with_template("{% if %}");
    let empty = with_template("");
    let tiny = common::tiny("");
    let long = "day ".repeat(3000);
    let cases: [(&Path, &[&str], &str); 8] = [
        (&tiny, &["--chat", "-p", "hi"], "has no chat template"),
        (refuses.path(), &["--chat", "-p", "hi"], "refuses this conversation: Only on Sundays"),
        (broken.path(), &["--chat", "-p", "hi"], "line 1"),
        (empty.path(), &["--chat", "-p", "hi"], "makes an empty text"),
        (&tiny, &[], "--prompt"),
        (&tiny, &["-p", "hi", "--system", "x"], "--chat"),
        (&tiny, &["--chat", "--json"], "--prompt"),
        (&tiny, &["-p", &long], "but the model's context is"),
    ];
    for (model, args, expected) in cases {
        let output = generate(model).args(args).assert().failure().get_output().clone();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(expected), "{args:?}: {error}");
        assert!(output.stdout.is_empty() || args == ["-p", &long], "{args:?}");
    }
}

#[cfg(not(feature = "hub"))]
#[test]
fn a_name_on_the_hub_tells_how_to_fetch_it_by_hand() {
    let output =
        generate(Path::new("org/some-model@v2")).args(["-p", "hi"]).assert().failure().get_output().clone();
    let error = String::from_utf8(output.stderr).unwrap();
    for part in [
        "no such file or folder",
        "--features hub",
        "hf download org/some-model --revision v2 --local-dir some-model",
    ] {
        assert!(error.contains(part), "{error}");
    }
}
