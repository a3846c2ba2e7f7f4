//! GGUF files that lie, one lie each, and what the error must say.

use crate::bad_input::{check, error};
use crate::fixtures::{GgufFile, GgufTensor, Meta, Rng};

type GgufCase = (&'static str, fn(&mut GgufFile), &'static [&'static str]);

fn check_gguf_cases(cases: &[GgufCase]) {
    for (case, lie, expected) in cases {
        let mut model = GgufFile::tiny();
        lie(&mut model);
        check_gguf(case, &model.write().bytes, expected);
    }
}

#[test]
fn gguf_headers_that_lie() {
    check_gguf_cases(&[
        ("magic", |f| f.magic = *b"GGML", &["does not start with the letters GGUF"]),
        ("version 1", |f| f.version = 1, &["GGUF version 1; versions 2 and 3"]),
        ("big-endian", |f| f.version = 3 << 24, &["big-endian"]),
        (
            "2^63 tensors",
            |f| f.tensor_count = Some(1 << 63),
            &["says 9223372036854775808 tensors", "at most"],
        ),
        ("2^63 entries", |f| f.entry_count = Some(1 << 63), &["says 9223372036854775808 metadata entries"]),
        ("one tensor more", |f| f.tensor_count = Some(21), &["tiny.gguf: "]),
        ("one entry more", |f| f.entry_count = Some(22), &["tiny.gguf: "]),
        ("alignment 0", |f| f.set("general.alignment", Meta::U32(0)), &["`general.alignment` is 0"]),
        ("alignment 24", |f| f.set("general.alignment", Meta::U32(24)), &["`general.alignment` is 24"]),
        (
            "alignment 2^63",
            |f| f.set("general.alignment", Meta::U64(1 << 63)),
            &["`general.alignment` is 92233720"],
        ),
        (
            "alignment of text",
            |f| f.set("general.alignment", Meta::Text("32".into())),
            &["not a whole number"],
        ),
        (
            "a key twice",
            |f| f.metadata.push(("llama.block_count".into(), Meta::U32(2))),
            &["metadata `llama.block_count` is there twice"],
        ),
        ("not UTF-8", |f| f.set("x", Meta::Text(vec![0xC3, 0x28])), &["metadata `x`", "not UTF-8"]),
        (
            "unknown value type",
            |f| f.set("x", Meta::Raw(99, vec![])),
            &["metadata `x`: value type 99 is unknown"],
        ),
        ("a truth value of 2", |f| f.set("x", Meta::Bool(2)), &["metadata `x`", "neither 0 nor 1"]),
        (
            "a text of 2^63 bytes",
            |f| f.set("x", Meta::Raw(8, (1u64 << 63).to_le_bytes().into())),
            &["metadata `x`: it ends too early: 9223372036854775808 bytes"],
        ),
        (
            "an array of 2^63 elements",
            |f| f.set("x", Meta::Raw(9, [&4u32.to_le_bytes()[..], &(1u64 << 63).to_le_bytes()].concat())),
            &["metadata `x`", "says 9223372036854775808 array elements"],
        ),
        (
            "arrays nested too deep",
            |f| {
                let level = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
                f.set("x", Meta::Raw(9, level.repeat(100_000)));
            },
            &["metadata `x`: arrays are nested deeper than 4"],
        ),
    ]);
}

#[test]
fn gguf_tensors_that_lie() {
    check_gguf_cases(&[
        (
            "past the end",
            |f| f.tensor("blk.1.ffn_down.weight").offset = Some(1 << 40),
            &["`blk.1.ffn_down.weight`", "past the end"],
        ),
        (
            "offset 2^63",
            |f| f.tensor("output_norm.weight").offset = Some(1 << 63),
            &["`output_norm.weight`", "past the end"],
        ),
        (
            "offset near 2^64",
            |f| f.tensor("output_norm.weight").offset = Some(u64::MAX - 31),
            &["`output_norm.weight`", "overflows"],
        ),
        (
            "overlap",
            |f| f.tensor("output_norm.weight").offset = Some(0),
            &["`token_embd.weight`", "overlaps"],
        ),
        (
            "misaligned",
            |f| f.tensor("output_norm.weight").offset = Some(8),
            &["`output_norm.weight`", "8 is not a multiple of the alignment 32"],
        ),
        (
            "overflowing shape",
            |f| f.tensor("blk.0.attn_q.weight").dims = vec![1 << 40, 1 << 40],
            &["`blk.0.attn_q.weight`", "overflows"],
        ),
        (
            "five dimensions",
            |f| f.tensor("blk.0.attn_q.weight").dims = vec![1; 5],
            &["`blk.0.attn_q.weight`", "5 dimensions"],
        ),
        (
            "2^32 dimensions",
            |f| f.set("llama.rope.dimension_count", Meta::U32(u32::MAX)),
            &["`llama.rope.dimension_count` is 4294967295"],
        ),
        (
            "half a block",
            |f| f.tensor("token_embd.weight").dims = vec![16, 24],
            &["`token_embd.weight`", "not whole Q8_0 blocks of 32"],
        ),
        (
            "another shape",
            |f| f.tensor("blk.1.ffn_up.weight").dims = vec![64, 32],
            &["`blk.1.ffn_up.weight`", "has shape [32, 64], the configuration says [64, 32]"],
        ),
        (
            "a type to come",
            |f| f.tensor("blk.0.ffn_up.weight").kind = 23,
            &["`blk.0.ffn_up.weight`", "IQ4_XS", "Q4_1, Q5_0, Q5_1 and Q2_K to Q6_K"],
        ),
        (
            "an eighth of a block",
            |f| f.tensor("blk.0.ffn_up.weight").kind = 14,
            &["`blk.0.ffn_up.weight`", "rows of 32 numbers are not whole Q6_K blocks of 256"],
        ),
        (
            "no such type",
            |f| f.tensor("blk.0.ffn_up.weight").kind = 77,
            &["`blk.0.ffn_up.weight`", "type 77"],
        ),
        (
            "a tensor twice",
            |f| f.tensor("blk.0.ffn_up.weight").name = "blk.0.ffn_gate.weight".into(),
            &["`blk.0.ffn_gate.weight`", "twice"],
        ),
        (
            "two missing",
            |f| f.tensors.retain(|t| t.name != "blk.1.ffn_up.weight" && t.name != "output_norm.weight"),
            &["2 tensors", "output_norm.weight, blk.1.ffn_up.weight"],
        ),
        (
            "a bias",
            |f| f.tensor("output_norm.weight").name = "blk.0.attn_q.bias".into(),
            &["1 tensors that a llama model needs are missing: output_norm.weight"],
        ),
        (
            "a name of a megabyte",
            |f| f.tensor("output_norm.weight").name = "\n".repeat(1 << 20),
            &["output_norm.weight"],
        ),
        ("no tensors", |f| f.tensors.clear(), &["20 tensors", "token_embd.weight, output_norm.weight"]),
    ]);
}

#[test]
fn gguf_metadata_that_the_decoder_or_the_tokenizer_cannot_use() {
    check_gguf_cases(&[
        (
            "family",
            |f| f.set("general.architecture", Meta::Text("mamba".into())),
            &["mamba", "reads only llama"],
        ),
        ("no family", |f| f.metadata.clear(), &["architecture is not stated"]),
        (
            "no width",
            |f| f.metadata.retain(|(key, _)| key != "llama.embedding_length"),
            &["`llama.embedding_length` is missing"],
        ),
        (
            "width 0",
            |f| f.set("llama.embedding_length", Meta::U32(0)),
            &["`hidden_size` is 0", "positive multiple"],
        ),
        (
            "width 2^63",
            |f| f.set("llama.embedding_length", Meta::U64(1 << 63)),
            &["`hidden_size` is 9223372036854775808"],
        ),
        (
            "width of text",
            |f| f.set("llama.embedding_length", Meta::Text("32".into())),
            &["must be a whole number"],
        ),
        ("heads 0", |f| f.set("llama.attention.head_count", Meta::U32(0)), &["multiple of the 0 heads"]),
        (
            "heads 5",
            |f| f.set("llama.attention.head_count_kv", Meta::U32(3)),
            &["`num_key_value_heads` is 3"],
        ),
        (
            "layers 2^32",
            |f| f.set("llama.block_count", Meta::U32(u32::MAX)),
            &["`num_hidden_layers` is 4294967295"],
        ),
        (
            "layers 9999",
            |f| f.set("llama.block_count", Meta::U32(9_999)),
            &["89973 tensors", "and 89873 more"],
        ),
        ("theta NaN", |f| f.set("llama.rope.freq_base", Meta::F32(f32::NAN)), &["`rope_theta` is NaN"]),
        (
            "scaling",
            |f| f.set("llama.rope.scaling.type", Meta::Text("yarn".into())),
            &["rope.scaling.type` is yarn"],
        ),
        ("experts", |f| f.set("llama.expert_count", Meta::U32(8)), &["experts are not supported"]),
        ("partial rope", |f| f.set("llama.rope.dimension_count", Meta::U32(4)), &["must be 8", "whole head"]),
        (
            "soft caps",
            |f| f.set("llama.attn_logit_softcapping", Meta::F32(50.0)),
            &["`llama.attn_logit_softcapping` is 50", "soft caps are not supported"],
        ),
        (
            "a negative factor",
            |f| f.set("llama.rope.scaling.factor", Meta::F32(-2.0)),
            &["`llama.rope.scaling.factor` is -2", "positive and finite"],
        ),
        (
            "factors of no known model",
            |f| {
                let factors = GgufTensor::random("rope_freqs.weight", &[4], 0, &mut Rng(8));
                f.tensors.push(factors);
            },
            &["`rope_freqs.weight`", "Llama 3.1 or 3.2"],
        ),
        (
            "biases of some layers",
            |f| {
                for name in ["blk.0.attn_q.bias", "blk.0.attn_output.bias"] {
                    f.tensors.push(GgufTensor::random(name, &[32], 0, &mut Rng(8)));
                }
            },
            &["6 tensors that a llama model needs are missing", "blk.0.attn_k.bias, blk.0.attn_v.bias"],
        ),
        (
            "a bias of one layer",
            |f| f.tensors.push(GgufTensor::random("blk.0.attn_q.bias", &[32], 0, &mut Rng(8))),
            &["1 tensors belong to nothing", "blk.0.attn_q.bias"],
        ),
        (
            "no norms of heads",
            |f| {
                f.metadata.iter_mut().for_each(|(key, _)| *key = key.replace("llama.", "qwen3."));
                f.set("general.architecture", Meta::Text("qwen3".into()));
            },
            &[
                "4 tensors that a qwen3 model needs are missing",
                "blk.0.attn_q_norm.weight, blk.0.attn_k_norm.weight",
            ],
        ),
        (
            "WordPiece",
            |f| f.set("tokenizer.ggml.model", Meta::Text("bert".into())),
            &["of the kind bert", "gpt2"],
        ),
        (
            "SentencePiece without scores",
            |f| f.set("tokenizer.ggml.model", Meta::Text("llama".into())),
            &["`tokenizer.ggml.scores` is missing"],
        ),
        (
            "split",
            |f| f.set("tokenizer.ggml.pre", Meta::Text("tekken".into())),
            &["tekken", "smollm, gpt-2, llama-bpe"],
        ),
        (
            "no tokens",
            |f| f.metadata.retain(|(key, _)| key != "tokenizer.ggml.tokens"),
            &["`tokenizer.ggml.tokens` is missing"],
        ),
        (
            "a token twice",
            |f| f.set("tokenizer.ggml.tokens", Meta::Texts(vec!["a".into(); 12])),
            &["`a` is there twice"],
        ),
        ("types", |f| f.set("tokenizer.ggml.token_type", Meta::I32s(vec![1])), &["12 tokens have 1 types"]),
        (
            "a merge into nothing",
            |f| f.set("tokenizer.ggml.merges", Meta::Texts(vec!["abc abc".into()])),
            &["merge 0", "`abcabc`", "the vocabulary lacks"],
        ),
        (
            "half a merge",
            |f| f.set("tokenizer.ggml.merges", Meta::Texts(vec!["ab".into()])),
            &["merge 0 is not two tokens"],
        ),
        (
            "more tokens than rows",
            |f| {
                let tokens = crate::fixtures::tokens().into_iter().chain(["zz".into()]).collect();
                f.set("tokenizer.ggml.tokens", Meta::Texts(tokens));
                f.set("tokenizer.ggml.token_type", Meta::I32s(vec![1; 13]));
            },
            &["ids reach 13", "only 12 rows"],
        ),
    ]);
}

#[test]
fn sentencepiece_vocabularies_that_lie() {
    let cases: &[GgufCase] = &[
        (
            "scores",
            |f| f.set("tokenizer.ggml.scores", Meta::F32s(vec![0.0; 5])),
            &["273 tokens have 5 scores"],
        ),
        (
            "scores of another type",
            |f| f.set("tokenizer.ggml.scores", Meta::I32s(vec![0; 273])),
            &["`tokenizer.ggml.scores`"],
        ),
        (
            "an unknown token past the end",
            |f| f.set("tokenizer.ggml.unknown_token_id", Meta::U32(273)),
            &["`tokenizer.ggml.unknown_token_id` is 273, past the vocabulary"],
        ),
        (
            "a token of a megabyte",
            |f| {
                let mut tokens = crate::fixtures::spm_tokens();
                tokens[270] = "a".repeat(1 << 20);
                f.set("tokenizer.ggml.tokens", Meta::Texts(tokens));
            },
            &["token 270 has 1048576 bytes, more than 1024"],
        ),
        (
            "a prefix of text",
            |f| f.set("tokenizer.ggml.add_space_prefix", Meta::Text("yes".into())),
            &["`tokenizer.ggml.add_space_prefix`"],
        ),
    ];
    for (case, lie, expected) in cases {
        let mut model = GgufFile::spm();
        lie(&mut model);
        check_gguf(case, &model.write().bytes, expected);
    }
}

#[test]
fn parts_that_lie() {
    let first = "tiny-00001-of-00003.gguf";
    type Case = (&'static str, fn(&mut Vec<(String, GgufFile)>), &'static str, &'static [&'static str]);
    let cases: &[Case] = &[
        (
            "a missing part",
            |parts| drop(parts.remove(1)),
            first,
            &["tiny-00002-of-00003.gguf: cannot be read"],
        ),
        (
            "the second part",
            |_| {},
            "tiny-00002-of-00003.gguf",
            &["it is part 2 of 3: give the first, `...-00001-of-00003.gguf`"],
        ),
        (
            "another name",
            |parts| parts[0].0 = "model.gguf".into(),
            "model.gguf",
            &["first of 3 parts, which are found by name: it must end in `-00001-of-00003.gguf`"],
        ),
        (
            "parts in another order",
            |parts| {
                let names = [parts[1].0.clone(), parts[2].0.clone()];
                [parts[2].0, parts[1].0] = names;
            },
            first,
            &["tiny-00002-of-00003.gguf: its `split.no` and `split.count` do not say that it is part 2 of 3"],
        ),
        (
            "a tensor twice",
            |parts| {
                let again = parts[0].1.tensors.pop().unwrap();
                parts[2].1.tensors.push(GgufTensor::random(&again.name, &[32], 0, &mut Rng(8)));
                parts[0].1.tensors.push(again);
            },
            first,
            &["tiny-00003-of-00003.gguf: tensor", "is in an earlier part too"],
        ),
        (
            "a tensor fewer",
            |parts| drop(parts[2].1.tensors.pop()),
            first,
            &["it says 20 tensors, but its 3 parts hold 19"],
        ),
        (
            "a damaged part",
            |parts| parts[2].1.magic = *b"GGML",
            first,
            &["tiny-00003-of-00003.gguf: it does not start with the letters GGUF"],
        ),
    ];
    for (case, lie, opened, expected) in cases {
        let folder = tempfile::tempdir().unwrap();
        let mut parts = GgufFile::tiny().parts(3);
        lie(&mut parts);
        for (name, part) in &parts {
            std::fs::write(folder.path().join(name), part.write().bytes).unwrap();
        }
        check(case, &error(&folder.path().join(opened)), expected);
    }
}

#[test]
fn gguf_files_cut_anywhere() {
    let whole = GgufFile::tiny().write();
    let last = GgufFile::tiny().tensors.last().unwrap().data.len();
    for len in (0..whole.bytes.len()).step_by(37).chain([whole.bytes.len() - last, whole.bytes.len() - 1]) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cut.gguf");
        std::fs::write(&file, &whole.bytes[..len]).unwrap();
        check(&format!("{len} bytes"), &error(&file), &["cut.gguf: "]);
    }
}

fn check_gguf(case: &str, bytes: &[u8], expected: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tiny.gguf");
    std::fs::write(&file, bytes).unwrap();
    let error = error(&file);
    check(case, &error, expected);
    check(case, &error, &["tiny.gguf: "]);
}
