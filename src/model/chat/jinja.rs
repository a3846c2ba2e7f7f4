use std::fmt::{self, Write as _};
use std::io;
use std::thread;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Output, State, Value, escape_formatter};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::ChatError;
use super::strftime;

const NAME: &str = "chat";

/// Steps that a template may take: real ones take a few dozen a message. 64 bytes of text and two entries of a list are a
/// step each, and are refused before they are made, so that all texts together stay below 32 MB.
///
/// What steps do not see is how large lists are that hold one list many times over. Their text is bounded where it is
/// printed and by `tojson` ([`LARGEST_TEXT`]), but the engine has no hook where `~`, `join`, `string` and `pprint` write
/// one, nor where `+` doubles lists: a template that is made to exhaust memory still can.
const FUEL: u64 = 500_000;

/// Bytes that one list or dictionary may be as text.
const LARGEST_TEXT: usize = 16 << 20;

/// Room for what recurs into lists within lists, as deep as [`FUEL`] lets them be. Touched as far as it is needed.
const STACK: usize = 512 << 20;

/// What stands in a [`ChatError::Refused`].
#[derive(Debug)]
struct Refusal(String);

/// Templates see what transformers' `_compile_jinja_template` gives them.
pub(super) fn environment(source: &str) -> Result<Environment<'static>, ChatError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(syntax_error)?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_fuel(Some(FUEL));
    environment.set_formatter(format);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "refused").with_source(Refusal(message)))
    });
    environment.add_function("strftime_now", |format: String| {
        strftime::now(&format).map_err(|problem| Error::new(ErrorKind::InvalidOperation, problem))
    });
    environment.add_filter("tojson", to_json);
    environment.add_template_owned(NAME, without_generation_tags(source)).map_err(syntax_error)?;
    Ok(environment)
}

fn syntax_error(error: Error) -> ChatError {
    ChatError::Syntax { line: error.line().unwrap_or(1), problem: problem(&error) }
}

pub(super) fn render(environment: &Environment, context: Value) -> Result<String, ChatError> {
    let rendered = thread::scope(|scope| {
        let render = || environment.get_template(NAME)?.render(context);
        let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, render);
        let thread = thread.map_err(|error| {
            let problem = format!("no thread with a stack of {} MiB for it: {error}", STACK >> 20);
            Error::new(ErrorKind::InvalidOperation, problem)
        })?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    rendered.map_err(|error| match refusal(&error) {
        Some(message) => ChatError::Refused(message),
        None => ChatError::Render { line: error.line().unwrap_or(1), problem: problem(&error) },
    })
}

fn problem(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// What the template said when it raised an exception.
fn refusal(error: &Error) -> Option<String> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Refusal(message)) = error.downcast_ref() {
            return Some(message.clone());
        }
        cause = error.source();
    }
    None
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// `{% generation %}` marks what a model is trained on and changes no text; here it becomes a condition that always holds.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        let Some(end) = tag.find("%}") else { break };
        let (tag, after) = tag.split_at(end + 2);
        let word = tag[2..end].trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        out += before;
        match word {
            "generation" => out += &tag.replace("generation", "if true"),
            "endgeneration" => out += &tag.replace("endgeneration", "endif"),
            _ => out += tag,
        }
        rest = after;
    }
    out + rest
}

/// Prints a value; of a list or dictionary no more than [`LARGEST_TEXT`].
fn format(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    if value.as_object().is_none() {
        return escape_formatter(out, state, value);
    }
    let mut text = Bounded::default();
    match write!(text, "{value}") {
        Ok(()) => Ok(out.write_str(&String::from_utf8_lossy(&text.0))?),
        Err(_) => Err(too_large()),
    }
}

fn too_large() -> Error {
    let problem = format!("a list or dictionary is more than {} MiB as text", LARGEST_TEXT >> 20);
    Error::new(ErrorKind::InvalidOperation, problem)
}

/// A text of at most [`LARGEST_TEXT`] bytes.
#[derive(Default)]
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > LARGEST_TEXT {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        io::Write::write_all(self, text.as_bytes()).map_err(|_| fmt::Error)
    }
}

/// JSON as Python's `json.dumps(value, ensure_ascii=False, indent=indent)` writes it.
fn to_json(value: Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Python's other options change nothing about what messages and tools hold.
    for ignored in ["ensure_ascii", "sort_keys", "separators"] {
        options.get::<Option<Value>>(ignored)?;
    }
    options.assert_all_used()?;
    let mut out = Bounded::default();
    let written = match indent {
        Some(spaces) => {
            let spaces = " ".repeat(spaces.min(16));
            let format = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut out, format))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut out, OneLine)),
    };
    let wrong = |problem: String| Error::new(ErrorKind::InvalidOperation, problem);
    written.map_err(|error| match error.is_io() {
        true => too_large(),
        false => wrong(format!("no JSON: {error}")),
    })?;
    String::from_utf8(out.0).map_err(|error| wrong(format!("no JSON: {error}")))
}

/// A blank behind each comma and colon.
struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: io::Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: io::Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}
