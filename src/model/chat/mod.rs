//! Conversations as a model was trained to read them: the checkpoint's own Jinja template.

mod jinja;
mod strftime;

use std::collections::BTreeMap;
use std::path::PathBuf;

use minijinja::{Environment, Value, context};

use super::Tokenizer;

/// A chat template, compiled, with the special tokens that it may write.
///
/// Rendered as Hugging Face's `apply_chat_template` does: blocks are trimmed, `raise_exception`, `strftime_now`, `tojson`
/// in Python's layout, loop controls and the methods of Python's strings and dictionaries are there; `tools` and `documents`
/// are none.
pub struct ChatTemplate {
    environment: Environment<'static>,
    tokens: BTreeMap<&'static str, String>,
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub content: String,
}

/// Who says a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
}

impl Role {
    /// As templates call it.
    fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

impl Message {
    /// What `role` says.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}

/// What the rendered conversation ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The start of the assistant's next turn: the model goes on from there.
    Answer,
    /// The last message.
    Message,
}

/// Why there is no text of a conversation.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error(
        "{path} has no chat template (chat_template.jinja, tokenizer_config.json or GGUF's `tokenizer.chat_template`), so it \
         is not known how it reads conversations: take an instruction-tuned model, or leave --chat out and continue a text"
    )]
    NoTemplate { path: PathBuf },
    #[error(
        "the chat template is no Jinja that can be read: line {line}: {problem}; put a mended one into chat_template.jinja"
    )]
    Syntax { line: usize, problem: String },
    #[error("the chat template refuses this conversation: {0}")]
    Refused(String),
    #[error("the chat template fails at line {line}: {problem}; put a mended one into chat_template.jinja")]
    Render { line: usize, problem: String },
}

impl ChatTemplate {
    /// Compiles `source`. `tokens` are the texts of special tokens by the names that templates have for them
    /// (`bos_token`, `eos_token`, ...).
    pub fn new(source: &str, tokens: BTreeMap<&'static str, String>) -> Result<Self, ChatError> {
        Ok(Self { environment: jinja::environment(source)?, tokens })
    }

    /// The text of a conversation, start token included where the template writes one.
    pub fn render(&self, messages: &[Message], ending: Ending) -> Result<String, ChatError> {
        let turn = |message: &Message| {
            context! { role => message.role.name(), content => message.content.as_str() }
        };
        let own = context! {
            messages => messages.iter().map(turn).collect::<Vec<_>>(),
            add_generation_prompt => ending == Ending::Answer,
            tools => Value::from(()),
            documents => Value::from(()),
        };
        jinja::render(&self.environment, context! { ..own, ..self.tokens.clone() })
    }

    /// The special token that the template writes behind an answer, which ends the model's turn. `None` where it writes
    /// none, or refuses a conversation that ends with an answer.
    pub fn end_of_turn(&self, tokenizer: &Tokenizer) -> Option<u32> {
        const ANSWER: &str = "lapidary";
        let exchange = [Message::new(Role::User, "?"), Message::new(Role::Assistant, ANSWER)];
        let text = self.render(&exchange, Ending::Message).ok()?;
        let behind = &text[text.rfind(ANSWER)? + ANSWER.len()..];
        let first = *tokenizer.encode(behind.trim_start()).ok()?.first()?;
        tokenizer.is_added(first).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> BTreeMap<&'static str, String> {
        [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(name, text)| (name, text.to_owned())).into()
    }

    fn conversation() -> Vec<Message> {
        vec![
            Message::new(Role::System, "Be brief."),
            Message::new(Role::User, " Hi <there> "),
            Message::new(Role::Assistant, "<think>hm</think>\n\nHello"),
            Message::new(Role::User, "Bye"),
        ]
    }

    #[track_caller]
    fn rendered(source: &str) -> String {
        ChatTemplate::new(source, tokens()).unwrap().render(&conversation(), Ending::Answer).unwrap()
    }

    /// One template for each way of writing that families have.
    #[test]
    fn templates_of_every_family_render() {
        let cases = [
            // ChatML (SmolLM2, Qwen): a default system turn, whitespace control, trimmed blocks.
            (
                "{% for message in messages %}\n    {% if loop.first and messages[0]['role'] != 'system' %}\n{{ '<|im_start|>system\\nDefault<|im_end|>\\n' }}{% endif %}\n{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}\n{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
                "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <there> <|im_end|>\n<|im_start|>assistant\n<think>hm</think>\n\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
            ),
            // Llama 2: the system text inside of the first turn, slices, alternation, strip().
            (
                "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system = false %}{% endif %}{% for m in loop_messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}{% if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + m['content'] %}{% else %}{% set content = m['content'] %}{% endif %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ ' ' + content.split('</think>')[-1].lstrip('\\n') + ' ' + eos_token }}{% endif %}{% endfor %}",
                "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n Hi <there> [/INST] Hello </s><s>[INST] Bye [/INST]",
            ),
            // Llama 3: undefined and none, filters, a default that is set, tojson with indentation.
            (
                "{{- bos_token }}\n{%- if custom_tools is defined %}\n    {%- set tools = custom_tools %}\n{%- endif %}\n{%- if tools is not none %}{{ tools | tojson(indent=4) }}{% endif %}\n{%- for message in messages if not message.role == 'system' %}\n    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n",
                "<s><|start_header_id|>user<|end_header_id|>\n\nHi <there><|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n<think>hm</think>\n\nHello<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            // Gemma: a role of another name, a nested conditional expression, content that may be a list.
            (
                "{{ bos_token }}\n{%- set first = messages[0]['content'] + '\\n\\n' if messages[0]['role'] == 'system' else '' -%}\n{%- for message in messages -%}\n{%- if message['role'] == 'system' %}{% continue %}{% endif -%}\n{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' + (first if loop.index == 2 else '') }}{%- if message['content'] is string -%}{{ message['content'] | trim }}{%- elif message['content'] is iterable -%}{% for item in message['content'] %}{{ item['text'] }}{% endfor %}{%- else -%}{{ raise_exception('Invalid content type') }}{%- endif -%}{{ '<end_of_turn>\\n' }}\n{%- endfor -%}\n{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}",
                "<s><start_of_turn>user\nBe brief.\n\nHi <there><end_of_turn>\n<start_of_turn>model\n<think>hm</think>\n\nHello<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
            ),
            // Qwen3: namespaces, reversed lists, methods, membership, slices of strings.
            (
                "{%- set ns = namespace(last=-1) %}{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}{%- if ns.last < 0 and message.role == 'user' and not (message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}{%- set ns.last = index %}{%- endif %}{%- endfor %}{%- for message in messages %}{%- set content = message.content %}{%- if message.role == 'assistant' and '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}{{- '[' ~ message.role[0:1] ~ loop.index0 ~ ('*' if loop.index0 == ns.last else '') ~ ']' ~ content.strip() }}{%- endfor %}{%- if add_generation_prompt %}{{- '[a]' }}{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}",
                "[s0]Be brief.[u1]Hi <there>[a2]Hello[u3*]Bye[a]",
            ),
            // Mistral: a macro, generation tags (which mark text for training), tojson in Python's layout.
            (
                "{%- macro turn(m) -%}[{{ m.role }}]{% generation %}{{ m.content }}{%- endgeneration %}{%- endmacro -%}\n{{- turn(messages[-1]) }}{{ {'a': [1, 2.5, none, true], 'b': '<é>'} | tojson }}{{ [] | tojson }}{{ messages[0].get('name', 'nobody') }}{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
                "[user]Bye{\"a\": [1, 2.5, null, true], \"b\": \"<é>\"}[]nobodyrole=system;content=Be brief.;",
            ),
        ];
        for (source, expected) in cases {
            assert_eq!(rendered(source), expected, "{source}");
        }
    }

    #[test]
    fn dates_are_those_of_today() {
        let text = rendered("{{ strftime_now('%Y-%m-%d') }}|{{ strftime_now('%d %b %Y') }}");
        assert!(text.starts_with("20") && text.len() == "2026-11-29|29 Nov 2026".len(), "{text}");
    }

    #[test]
    fn what_a_template_does_wrong_is_named() {
        let error = |source: &str| match ChatTemplate::new(source, tokens()) {
            Ok(template) => template.render(&conversation(), Ending::Answer).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        let sixty = |body: &str| format!("{{% for i in range(60) %}}{body}{{% endfor %}}");
        let list = "{% set ns = namespace(l=[]) %}";
        let doubled = format!("{list}{}", sixty("{% set ns.l = [ns.l, ns.l] %}"));
        let nested = format!("{}ns.l{}", "[".repeat(50), "]".repeat(50));
        let deep = format!("{list}{{% for i in range(6000) %}}{{% set ns.l = {nested} %}}{{% endfor %}}");
        for (source, expected) in [
            ("{% if %}", "is no Jinja that can be read: line 1"),
            ("a\n{% for x in messages %}", "line 2"),
            (
                "{{ raise_exception('System role not supported') }}",
                "refuses this conversation: System role not",
            ),
            ("\n{{ messages[0].content.nothing() }}", "fails at line 2"),
            ("{{ messages[9].role }}", "fails at line 1"),
            ("{{ strftime_now('%Q') }}", "`%Q`"),
            ("{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}", "fuel"),
            ("{% include 'other' %}", "line 1"),
            // Texts and lists that double, and lists so deep that a thread's usual stack does not hold them.
            (&format!("{{% set ns = namespace(s='x') %}}{}", sixty("{% set ns.s = ns.s ~ ns.s %}")), "fuel"),
            (&format!("{{% set ns = namespace(s='x') %}}{}", sixty("{% set ns.s = ns.s + ns.s %}")), "fuel"),
            (&format!("{doubled}{{{{ ns.l }}}}"), "more than 16 MiB"),
            (&format!("{doubled}{{{{ ns.l | tojson }}}}"), "more than 16 MiB"),
            (&format!("{deep}{{{{ ns.l }}}}{{{{ 1 // 0 }}}}"), "line 1"),
            (&format!("{deep}{{{{ ns.l | tojson }}}}"), "line 1"),
        ] {
            let error = error(source);
            assert!(error.contains(expected), "{source}: {error}");
        }
    }
}
