//! The tokenizer built from a real GGUF file, against ids and counts known from the original.

mod common;

use std::time::Instant;

use lapidary::model::{Checkpoint, Tokenizer};

#[test]
fn smollm2_gives_the_ids_of_its_original() {
    let Some(path) = common::smollm2() else { return };
    let checkpoint = Checkpoint::open(path).unwrap();
    let tokenizer = checkpoint.tokenizer().unwrap();
    let cases: [(&str, &[u32]); 3] = [
        ("The capital of France is", &[504, 3575, 282, 4649, 314]),
        ("<|im_start|>The<|im_end|>", &[1, 504, 2]),
        ("", &[]),
    ];
    let json = Tokenizer::from_json(tokenizer.to_json().unwrap().as_bytes()).unwrap();
    for (text, ids) in cases {
        assert_eq!(tokenizer.encode(text).unwrap(), ids, "{text}");
        assert_eq!(json.encode(text).unwrap(), ids, "{text}, from tokenizer.json");
        assert_eq!(tokenizer.decode(ids).unwrap(), text);
    }
    assert_eq!((tokenizer.vocab_len(), tokenizer.token_id("<|im_end|>")), (49_152, Some(2)));
    assert_eq!((json.vocab_len(), json.token_id("<|im_end|>")), (49_152, Some(2)));
}

#[test]
fn smollm2_writes_what_it_streams() {
    let Some(path) = common::smollm2() else { return };
    let tokenizer = Checkpoint::open(path).unwrap().tokenizer().unwrap();
    let text = "Crème brûlée, 東京 12345 — 🦀🇫🇷\n\n  <|im_end|> end\t";
    let ids = tokenizer.encode(text).unwrap();
    let mut stream = tokenizer.stream();
    let mut pieces = Vec::new();
    for id in &ids {
        pieces.extend(stream.push(*id).unwrap());
    }
    assert_eq!(stream.finish().unwrap(), None);
    assert_eq!(pieces.concat(), text);
    assert!(pieces.len() > 10 && pieces.iter().all(|piece| !piece.contains('\u{FFFD}')), "{pieces:?}");

    // The crab's four bytes are spread over several tokens; without the last they never become a character.
    let crab = tokenizer.encode("🦀").unwrap();
    let mut stream = tokenizer.stream();
    for id in &crab[..crab.len() - 1] {
        assert_eq!(stream.push(*id).unwrap(), None);
    }
    assert!(stream.finish().unwrap().unwrap().contains('\u{FFFD}'));
}

#[test]
fn smollm2_counts_the_tokens_of_whole_files() {
    let Some(path) = common::smollm2() else { return };
    let tokenizer = Checkpoint::open(path).unwrap().tokenizer().unwrap();
    let json = Tokenizer::from_json(tokenizer.to_json().unwrap().as_bytes()).unwrap();
    for (name, count) in
        [("wikitext2-valid.txt", 273_868), ("wikitext2-test.txt", 312_144), ("shakespeare.txt", 341_094)]
    {
        let Some(file) = common::data(&format!("text/{name}")) else { continue };
        let text = std::fs::read_to_string(file).unwrap();
        let start = Instant::now();
        let ids = tokenizer.encode(&text).unwrap();
        let seconds = start.elapsed().as_secs_f64();
        println!("{name}: {} tokens in {seconds:.2} s", ids.len());
        assert_eq!(ids.len(), count, "{name}");
        assert!(json.encode(&text).unwrap() == ids, "{name}: tokenizer.json gives other ids");
        assert!(tokenizer.decode(&ids).unwrap() == text, "{name}: decoding does not give the text back");
    }
}

/// Mixed scripts, digits, runs of spaces, line ends and tabs, and emoji of several code points.
const PAGE: &str = "Crème brûlée №12345 — 東京都 서울 Москва العربية हिन्दी ไทย עברית\n\n\n  two spaces,    four\t\ttabs\r\n\
    0.1+1e-9=3.14159, x²≠½; “quotes” ‘single’… <b>bold</b> &amp; <|im_end|>\n🦀🇫🇷👩‍👩‍👧‍👦🏳️‍🌈 end  \n a▁b\u{200b}c \u{1F9FF}";

#[test]
fn both_tokenizers_give_a_page_of_everything_back() {
    for path in [common::smollm2(), common::gemma3()].into_iter().flatten() {
        let tokenizer = Checkpoint::open(path).unwrap().tokenizer().unwrap();
        let json = Tokenizer::from_json(tokenizer.to_json().unwrap().as_bytes()).unwrap();
        // A SentencePiece tokenizer cannot tell its own sign for a space from a space.
        let expected = match tokenizer.token_id("<start_of_turn>") {
            Some(_) => PAGE.replace('▁', " "),
            None => PAGE.to_owned(),
        };
        let ids = tokenizer.encode(PAGE).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), expected);
        assert_eq!(json.encode(PAGE).unwrap(), ids);
        let mut stream = tokenizer.stream();
        let mut streamed: String = ids.iter().filter_map(|id| stream.push(*id).unwrap()).collect();
        streamed.extend(stream.finish().unwrap());
        assert_eq!(streamed, expected);
    }
}

#[test]
fn gemma3_gives_the_ids_of_its_original() {
    let Some(path) = common::gemma3() else { return };
    let start = Instant::now();
    let tokenizer = Checkpoint::open(path).unwrap().tokenizer().unwrap();
    println!("built in {:.2} s", start.elapsed().as_secs_f64());
    let cases: [(&str, &[u32]); 4] = [
        ("The capital of France is", &[818, 5279, 529, 7001, 563]),
        ("<bos>The<end_of_turn>", &[2, 818, 106]),
        ("\n\n", &[108]),
        ("", &[]),
    ];
    for (text, ids) in cases {
        assert_eq!(tokenizer.encode(text).unwrap(), ids, "{text}");
        assert_eq!(tokenizer.decode(ids).unwrap(), text);
    }
    assert_eq!(tokenizer.vocab_len(), 262_144);
    // Characters that are no token are spelled in bytes: <0xF3> is 238 + 0xF3.
    assert_eq!(tokenizer.encode("\u{E0001}").unwrap(), [0xF3, 0xA0, 0x80, 0x81].map(|byte| 238 + byte));
}

#[test]
fn gemma3_gives_whole_files_back() {
    let Some(path) = common::gemma3() else { return };
    let tokenizer = Checkpoint::open(path).unwrap().tokenizer().unwrap();
    for name in ["wikitext2-test.txt", "shakespeare.txt"] {
        let Some(file) = common::data(&format!("text/{name}")) else { continue };
        let text = std::fs::read_to_string(file).unwrap();
        let start = Instant::now();
        let ids = tokenizer.encode(&text).unwrap();
        println!("{name}: {} tokens in {:.2} s", ids.len(), start.elapsed().as_secs_f64());
        assert!(tokenizer.decode(&ids).unwrap() == text, "{name}: decoding does not give the text back");
    }
}
