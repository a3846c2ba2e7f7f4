use std::io::{BufRead, IsTerminal};

use miette::{IntoDiagnostic, Result, WrapErr, miette};

use lapidary::model::{ChatTemplate, Ending, Message, Role};

use super::writer::Writer;
use super::{Args, answer, report};

/// Answers the prompt; without one, every line of stdin as a turn of one conversation.
pub fn run(args: &Args, template: &ChatTemplate, writer: &mut Writer) -> Result<()> {
    let end = template.end_of_turn(writer.tokenizer);
    writer.ends.extend(end.filter(|end| !writer.ends.contains(end)));
    let mut messages = Vec::new();
    messages.extend(args.system.as_ref().map(|text| Message::new(Role::System, text)));
    if let Some(prompt) = &args.prompt {
        return turn(args, template, writer, &mut messages, prompt);
    }
    let shown = std::io::stdin().is_terminal();
    loop {
        if shown {
            eprint!("> ");
        }
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        if read.into_diagnostic().wrap_err("stdin cannot be read as a line of UTF-8 text")? == 0 {
            return Ok(());
        }
        let said = line.trim_end_matches(['\r', '\n']);
        if !said.is_empty() {
            turn(args, template, writer, &mut messages, said)?;
        }
    }
}

fn turn(
    args: &Args,
    template: &ChatTemplate,
    writer: &mut Writer,
    messages: &mut Vec<Message>,
    said: &str,
) -> Result<()> {
    messages.push(Message::new(Role::User, said));
    let text = template.render(messages, Ending::Answer).into_diagnostic()?;
    let tokens = writer.tokenizer.encode(&text).into_diagnostic()?;
    if tokens.is_empty() {
        return Err(miette!(
            "the chat template makes an empty text of this conversation: it cannot be answered"
        ));
    }
    let written = answer(args, writer, &tokens)?;
    report(args, writer, &written)?;
    messages.push(Message::new(Role::Assistant, written.text));
    Ok(())
}
