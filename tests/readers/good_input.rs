use std::path::Path;

use lapidary::model::{Checkpoint, Config, Ending, Message, Role, RowOrder, Tokenizer};
use lapidary::ops::Dtype;

use crate::fixtures::{Files, GgufFile, HfModel, Meta, Rng, SafeTensor, VOCAB, spm_tokens, tokenizer_json};

/// Writes the files to a folder and opens it.
fn open_folder(files: &Files) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    (folder, checkpoint)
}

fn open_gguf(bytes: &[u8]) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tiny.gguf");
    std::fs::write(&file, bytes).unwrap();
    let checkpoint = Checkpoint::open(&file).unwrap();
    (folder, checkpoint)
}

#[test]
fn a_folder_gives_its_tensors_as_written_whole_or_in_shards() {
    for shards in [0, 1, 3] {
        let mut model = HfModel::tiny();
        model.shards = shards;
        let (folder, checkpoint) = open_folder(&model.write());
        for written in &model.tensors {
            let read = checkpoint.tensor(&written.name).unwrap();
            assert_eq!(read.shape.iter().map(|size| *size as u64).collect::<Vec<_>>(), written.shape);
            assert_eq!((read.dtype.name(), read.bytes.as_slice()), (written.dtype, written.data.as_slice()));
        }
        assert_eq!(checkpoint.names().count(), model.tensors.len());
        assert!(checkpoint.names().is_sorted());
        assert!(checkpoint.has("lm_head.weight") && !checkpoint.has("lm_head.bias"));
        let config = checkpoint.config();
        assert_eq!((config.bos, config.eos.as_slice(), config.add_bos), (Some(0), [0, 11].as_slice(), true));
        assert_eq!(checkpoint.half_dtype(), Dtype::Bf16);
        assert_eq!(checkpoint.raw_config().unwrap()["torch_dtype"], "bfloat16");
        assert_eq!(checkpoint.chat_template().as_deref(), Some("{{ messages }}"));
        let extra = ["tokenizer.json", "tokenizer_config.json", "generation_config.json"];
        assert_eq!(checkpoint.extra_files(), extra.map(|name| folder.path().join(name)));
        assert_eq!(checkpoint.tokenizer().unwrap().encode("ab c").unwrap(), [7, 4, 3]);
    }
}

#[test]
fn packed_layers_and_what_the_configuration_determines_are_accepted() {
    let mut model = HfModel::tiny();
    model.config["tie_word_embeddings"] = true.into();
    let mut rng = crate::fixtures::Rng(3);
    model.tensors.push(SafeTensor::random(
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        &[4],
        "F32",
        &mut rng,
    ));
    let down = model.tensor("model.layers.1.mlp.down_proj.weight");
    *down = SafeTensor::random("model.layers.1.mlp.down_proj.blr", &[77], "U8", &mut rng);
    let (_folder, checkpoint) = open_folder(&model.write());
    assert!(checkpoint.config().tied && !checkpoint.has("lm_head.weight"));
    assert!(!checkpoint.has("model.layers.1.mlp.down_proj.weight"));
    let payload = checkpoint.tensor("model.layers.1.mlp.down_proj.blr").unwrap();
    assert_eq!((payload.dtype, payload.shape), (Dtype::U8, vec![77]));
}

#[test]
fn a_gguf_file_gives_its_tensors_under_hugging_face_names() {
    for version in [2, 3] {
        for alignment in [32, 8, 256] {
            let mut model = GgufFile::tiny();
            (model.version, model.alignment) = (version, alignment);
            if alignment != 32 {
                model.set("general.alignment", Meta::U32(alignment as u32));
            }
            let (_folder, checkpoint) = open_gguf(&model.write().bytes);
            let pairs = [
                ("token_embd", "model.embed_tokens", RowOrder::Plain),
                ("blk.1.attn_q", "model.layers.1.self_attn.q_proj", RowOrder::Interleaved { head_dim: 8 }),
                ("blk.0.attn_k", "model.layers.0.self_attn.k_proj", RowOrder::Interleaved { head_dim: 8 }),
                ("blk.0.attn_v", "model.layers.0.self_attn.v_proj", RowOrder::Plain),
                ("blk.0.attn_output", "model.layers.0.self_attn.o_proj", RowOrder::Plain),
                ("blk.1.ffn_down", "model.layers.1.mlp.down_proj", RowOrder::Plain),
                ("blk.1.ffn_norm", "model.layers.1.post_attention_layernorm", RowOrder::Plain),
            ];
            for (gguf, hf, row_order) in pairs {
                let written = model.tensor(&format!("{gguf}.weight"));
                let read = checkpoint.tensor(&format!("{hf}.weight")).unwrap();
                assert_eq!(
                    (read.bytes.as_slice(), read.row_order),
                    (written.data.as_slice(), row_order),
                    "{hf}"
                );
                let slowest_first: Vec<u64> = written.dims.iter().rev().copied().collect();
                assert_eq!(read.shape.iter().map(|size| *size as u64).collect::<Vec<_>>(), slowest_first);
            }
            let config = checkpoint.config();
            assert_eq!((config.heads, config.kv_heads, config.head_dim, config.layers), (4, 2, 8, 2));
            assert_eq!((config.rms_eps, config.rope.theta, config.tied), (1e-5, 100_000.0, true));
            assert_eq!((config.vocab as u64, config.bos, config.add_bos), (VOCAB, Some(0), true));
            assert_eq!(
                Config::from_hf_json(&config.to_hf_json(Dtype::F16).to_string()).unwrap().hidden,
                config.hidden
            );
            assert_eq!((checkpoint.half_dtype(), checkpoint.raw_config()), (Dtype::F16, None));
            assert_eq!(checkpoint.chat_template().as_deref(), Some("{{ messages }}"));
        }
    }
}

#[test]
fn chat_templates_and_special_tokens_are_found_wherever_they_are() {
    // In the order in which one decides over the other.
    let places: [(&str, &str); 4] = [
        ("chat_template.jinja", "in jinja"),
        ("chat_template.json", r#"{"chat_template": "in json"}"#),
        (
            "tokenizer_config.json",
            r#"{"chat_template": [{"name": "rag", "template": "no"}, {"name": "default", "template": "named"}]}"#,
        ),
        (
            "tokenizer_config.json",
            r#"{"chat_template": "plain", "bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "<tool>"}"#,
        ),
    ];
    for (at, expected) in ["in jinja", "in json", "named", "plain"].into_iter().enumerate() {
        let mut files = HfModel::tiny().write();
        for (name, content) in places[at..].iter().rev() {
            files.insert((*name).into(), content.as_bytes().to_vec());
        }
        let (_folder, checkpoint) = open_folder(&files);
        assert_eq!(checkpoint.chat_template().as_deref(), Some(expected));
        assert_eq!(checkpoint.extra_files().iter().any(|file| file.ends_with("chat_template.json")), at < 2);
    }
    let mut files = HfModel::tiny().write();
    files.insert("tokenizer_config.json".into(), places[3].1.as_bytes().to_vec());
    files.insert("generation_config.json".into(), b"{\"eos_token_id\": 3}".to_vec());
    let template = "{{ bos_token }}{% for m in messages %}{{ m.content }} {{ eos_token }}{% endfor %}";
    files.insert("chat_template.jinja".into(), template.into());
    let (_folder, checkpoint) = open_folder(&files);
    let tokenizer = checkpoint.tokenizer().unwrap();
    // The generation file's, config.json's, the tokenizer's.
    assert_eq!(checkpoint.ends(&tokenizer), [3, 0, 11]);
    let chat = checkpoint.chat(&tokenizer).unwrap();
    let said = [Message::new(Role::User, "ab")];
    assert_eq!(chat.render(&said, Ending::Answer).unwrap(), "<s>ab <tool>");
    // Here `<tool>` is spelled with letters, no token of its own.
    assert_eq!(chat.end_of_turn(&tokenizer), None);
    files.insert("chat_template.jinja".into(), template.replace("eos_token", "'\n<s>'").into());
    let (_folder, checkpoint) = open_folder(&files);
    assert_eq!(checkpoint.chat(&tokenizer).unwrap().end_of_turn(&tokenizer), Some(0));

    files.remove("chat_template.jinja");
    files.remove("tokenizer_config.json");
    let (_folder, checkpoint) = open_folder(&files);
    let error = checkpoint.chat(&tokenizer).err().unwrap().to_string();
    assert!(error.contains("has no chat template") && error.contains("leave --chat out"), "{error}");
    assert_eq!(checkpoint.special_tokens(&tokenizer)["eos_token"], "c");
}

#[test]
fn the_tokenizer_of_a_gguf_file_survives_as_tokenizer_json() {
    let mut model = GgufFile::tiny();
    let mut seen = Vec::new();
    for pre in ["smollm", "gpt-2"] {
        model.set("tokenizer.ggml.pre", Meta::Text(pre.into()));
        let (_folder, checkpoint) = open_gguf(&model.write().bytes);
        let tokenizer = checkpoint.tokenizer().unwrap();
        let json = tokenizer.to_json().unwrap();
        let again = Tokenizer::from_json(json.as_bytes()).unwrap();
        for text in ["abc a12<tool>b\nabca", "", "<s>ab", "  a"] {
            let ids = tokenizer.encode(text).unwrap();
            assert_eq!(again.encode(text).unwrap(), ids, "{pre}: {text}");
            assert_eq!(again.decode(&ids).unwrap(), text, "{pre}");
            seen.push(ids);
        }
        // A folder with this tokenizer.json puts the BOS token first, as the GGUF file said.
        let mut files = HfModel::tiny().write();
        files.insert("tokenizer.json".into(), json.into_bytes());
        assert!(open_folder(&files).1.config().add_bos);
    }
    assert_eq!(seen[0], [9, 8, 5, 6, 11, 2, 10, 9, 1]);
}

/// SentencePiece's algorithm word for word: as long as two neighbours make a token, those of the best one are joined, the
/// leftmost of equals; what is no token then becomes its bytes.
fn joined_by_score(text: &str) -> Vec<u32> {
    let tokens = spm_tokens();
    let id = |piece: &str| tokens.iter().position(|token| token == piece);
    let mut pieces: Vec<String> = text.replace(' ', "▁").chars().map(String::from).collect();
    loop {
        let joined = |at: usize| format!("{}{}", pieces[at], pieces[at + 1]);
        let best = (0..pieces.len().saturating_sub(1)).filter_map(|at| Some((id(&joined(at))?, at))).min();
        let Some((_, at)) = best else { break };
        pieces[at] = joined(at);
        pieces.remove(at + 1);
    }
    let bytes = |piece: &String| piece.bytes().map(|b| 3 + u32::from(b)).collect::<Vec<_>>();
    pieces.iter().flat_map(|piece| id(piece).map_or_else(|| bytes(piece), |id| vec![id as u32])).collect()
}

#[test]
fn sentencepiece_joins_by_score_and_falls_back_to_bytes() {
    let mut model = GgufFile::spm();
    for (prefix, before) in [(1, " "), (0, "")] {
        model.set("tokenizer.ggml.add_space_prefix", Meta::Bool(prefix));
        let (_folder, checkpoint) = open_gguf(&model.write().bytes);
        let tokenizer = checkpoint.tokenizer().unwrap();
        let again = Tokenizer::from_json(tokenizer.to_json().unwrap().as_bytes()).unwrap();
        let mut rng = Rng(9);
        for case in 0..500 {
            let letters: Vec<char> = "abc a b1é東\n".chars().collect();
            let text: String = (0..rng.below(12)).map(|_| rng.pick(&letters)).collect();
            let expected = if text.is_empty() { vec![] } else { joined_by_score(&format!("{before}{text}")) };
            let ids = tokenizer.encode(&text).unwrap();
            assert_eq!(ids, expected, "{case}: {text:?}");
            assert_eq!(again.encode(&text).unwrap(), ids, "{text:?}");
            assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        }
        assert_eq!(tokenizer.encode("<tool>").unwrap(), [2]);
        // What goes on behind other tokens keeps the space that it starts with.
        let mut stream = tokenizer.stream_after(&tokenizer.encode("ab").unwrap());
        let id = tokenizer.token_id("▁abc").unwrap();
        assert_eq!(stream.push(id).unwrap().as_deref(), Some(" abc"));
    }
}

#[test]
fn texts_are_cut_as_each_family_does() {
    let mut model = GgufFile::tiny();
    let tokens = ["<s>", "1", "2", "12", "121", "Ã", "©", "Ã©", "e", "Ì", "ģ", "<x>"].map(String::from);
    model.set("tokenizer.ggml.tokens", Meta::Texts(tokens.into()));
    let merges = ["1 2", "12 1", "Ã ©"].map(String::from);
    model.set("tokenizer.ggml.merges", Meta::Texts(merges.into()));
    // Digits all together, at most three, one by one; and é in two code points, which Qwen composes to one.
    for (pre, digits, accent) in [
        ("gpt-2", vec![3, 3, 3], vec![8, 9, 10]),
        ("llama-bpe", vec![4, 2, 3], vec![8, 9, 10]),
        ("smollm", vec![1, 2, 1, 2, 1, 2], vec![8, 9, 10]),
        ("qwen2", vec![1, 2, 1, 2, 1, 2], vec![7]),
    ] {
        model.set("tokenizer.ggml.pre", Meta::Text(pre.into()));
        let (_folder, checkpoint) = open_gguf(&model.write().bytes);
        let tokenizer = checkpoint.tokenizer().unwrap();
        let again = Tokenizer::from_json(tokenizer.to_json().unwrap().as_bytes()).unwrap();
        for (text, ids) in [("121212", &digits), ("e\u{301}", &accent)] {
            assert_eq!(&tokenizer.encode(text).unwrap(), ids, "{pre}: {text}");
            assert_eq!(&again.encode(text).unwrap(), ids, "{pre}: {text}");
        }
    }
}

#[test]
fn a_gguf_file_in_parts_is_the_whole_file() {
    let whole = open_gguf(&GgufFile::tiny().write().bytes).1;
    let folder = tempfile::tempdir().unwrap();
    let parts = GgufFile::tiny().parts(3);
    for (name, part) in &parts {
        std::fs::write(folder.path().join(name), part.write().bytes).unwrap();
    }
    let checkpoint = Checkpoint::open(folder.path().join(&parts[0].0)).unwrap();
    assert_eq!(checkpoint.config(), whole.config());
    assert!(checkpoint.names().eq(whole.names()));
    for name in whole.names() {
        let [ours, theirs] = [&checkpoint, &whole].map(|checkpoint| checkpoint.tensor(name).unwrap());
        assert_eq!((ours.dtype, ours.bytes.as_slice()), (theirs.dtype, theirs.bytes.as_slice()), "{name}");
    }
    assert_eq!(checkpoint.tokenizer().unwrap().encode("ab c").unwrap(), [7, 4, 3]);
    assert_ne!(checkpoint.fingerprint(), whole.fingerprint());
}

#[test]
fn the_fingerprint_is_of_the_contents_and_not_of_the_place() {
    let files = HfModel::tiny().write();
    let first = open_folder(&files).1.fingerprint();
    assert_eq!(first.len(), 64);
    assert_eq!(open_folder(&files).1.fingerprint(), first);
    for name in ["model.safetensors", "tokenizer.json"] {
        let mut changed = files.clone();
        let bytes = changed.get_mut(name).unwrap();
        match name {
            "tokenizer.json" => bytes.push(b'\n'),
            _ => *bytes.last_mut().unwrap() ^= 1,
        }
        assert_ne!(open_folder(&changed).1.fingerprint(), first, "{name}");
    }
    let gguf = GgufFile::tiny().write().bytes;
    assert_eq!(open_gguf(&gguf).1.fingerprint(), open_gguf(&gguf).1.fingerprint());
}

#[test]
fn opening_from_memory_is_opening_from_disk() {
    let files = HfModel::tiny().write();
    let read = |name: &str| {
        let bytes = files.get(name).cloned().ok_or(std::io::ErrorKind::NotFound)?;
        Ok(lapidary::device::Bytes::from(bytes))
    };
    let memory = Checkpoint::from_folder(Path::new("embedded"), &read).unwrap();
    assert_eq!(memory.fingerprint(), open_folder(&files).1.fingerprint());
    assert_eq!(Tokenizer::from_json(tokenizer_json().as_bytes()).unwrap().vocab_len() as u64, VOCAB);
}
