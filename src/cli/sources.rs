use std::path::{Path, PathBuf};

use miette::{IntoDiagnostic, Result, miette};

use lapidary::compress::calibration::{Content, Source};
use lapidary::compress::recipe::Recipe;
use lapidary::compress::self_written::WriteParams;
use lapidary::model::text::Text;

/// What calibrates.
#[derive(clap::Args)]
pub struct SourceArgs {
    /// Calibration text: a UTF-8 file, or `self` for text that the model writes; with `:SHARE` behind it (`self:0.5`)
    /// sources are mixed by their shares of the tokens; files without one are concatenated to one of share 1 [default:
    /// self; with two streams, files alone are mixed half and half with self]
    #[arg(long = "text", value_name = "FILE|self[:SHARE]", num_args = 1..)]
    texts: Vec<String>,
    /// Seed of the text that the model writes [default: 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Temperature at which it writes; 1 is its own distribution [default: 1]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Share of its texts that go on from a piece of the given text, between 0 and 1 [default: the recipe's: 0.5 for fast
    /// and best, 0 for others]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    continued: Option<f64>,
}

/// The name of the text that the model writes; a file of that name is `./self`.
const SELF: &str = "self";

impl SourceArgs {
    /// The texts that were named, and what the recipe takes beside or instead of them.
    pub fn read(&self, recipe: &Recipe) -> Result<Vec<Source>> {
        let sources = self.sources(recipe)?;
        let written = sources.iter().any(|source| matches!(source.content, Content::SelfWritten(_)));
        let given = [
            ("--seed", self.seed.is_some()),
            ("--temperature", self.temperature.is_some()),
            ("--continued", self.continued.is_some()),
        ];
        match given.iter().find(|(_, given)| *given && !written) {
            Some((option, _)) => Err(miette!(
                "{option} is of text that the model writes, and it writes none: name it with --text self or self:SHARE, or \
                 leave {option} out"
            )),
            None => Ok(sources),
        }
    }

    fn sources(&self, recipe: &Recipe) -> Result<Vec<Source>> {
        let is_self = |text: &String| split_share(text).is_ok_and(|(name, _)| name == SELF);
        let continued = match (self.continued, self.texts.iter().all(is_self)) {
            (Some(share), true) if share > 0.0 => {
                return Err(miette!(
                    "--continued {share}: there is no given text to go on from; name one with --text"
                ));
            }
            (_, true) => 0.0,
            (share, false) => share.unwrap_or(recipe.continued()),
        };
        if !(0.0..=1.0).contains(&continued) {
            return Err(miette!("--continued {continued}: a share is a number from 0 to 1"));
        }
        let like = WriteParams::default();
        let (temperature, seed) =
            (self.temperature.unwrap_or(like.temperature), self.seed.unwrap_or(like.seed));
        let write = WriteParams { temperature, seed, continued, ..like };
        let named = self.texts.iter().map(|text| split_share(text)).collect::<Result<Vec<_>>>()?;
        if named.iter().filter(|(name, _)| *name == SELF).count() > 1 {
            return Err(miette!("--text: the model writes one text, so give self once"));
        }
        if named.is_empty() {
            return Ok(if recipe.calibrates() { Source::mixed(None, write) } else { Vec::new() });
        }
        let (plain, shared): (Vec<_>, Vec<_>) =
            named.into_iter().partition(|(name, share)| *name != SELF && share.is_none());
        let files: Vec<PathBuf> = plain.iter().map(|(name, _)| PathBuf::from(name)).collect();
        let plain = match files.is_empty() {
            true => None,
            false => Some(Text::read(&files).into_diagnostic()?),
        };
        if shared.is_empty() {
            return Ok(match (plain, recipe.two_streams()) {
                (Some(text), false) => Source::text(text),
                (text, _) => Source::mixed(text, write),
            });
        }
        let source = |(name, share): &(&str, Option<f64>)| -> Result<Source> {
            let content = match *name {
                SELF => Content::SelfWritten(write),
                file => Content::Given(Text::read(&[PathBuf::from(file)]).into_diagnostic()?),
            };
            Ok(Source { content, share: share.unwrap_or(1.0) })
        };
        let mut sources = plain.map_or_else(Vec::new, Source::text);
        sources.extend(shared.iter().map(source).collect::<Result<Vec<_>>>()?);
        Ok(sources)
    }
}

/// `NAME:SHARE`, or a name alone; a file that exists under the whole name is meant as it stands.
fn split_share(text: &str) -> Result<(&str, Option<f64>)> {
    let share = text.rsplit_once(':').and_then(|(name, share)| Some((name, share.parse::<f64>().ok()?)));
    match share.filter(|_| !Path::new(text).exists()) {
        Some((_, share)) if !(share.is_finite() && share > 0.0) => {
            Err(miette!("--text {text}: a share is a number above 0"))
        }
        Some((name, share)) => Ok((name, Some(share))),
        None => Ok((text, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_stand_behind_the_last_colon() {
        let split = |text| split_share(text).unwrap();
        assert_eq!(split("self"), ("self", None));
        assert_eq!(split("self:0.25"), ("self", Some(0.25)));
        assert_eq!(split("C:/texts/wiki.txt"), ("C:/texts/wiki.txt", None));
        assert_eq!(split("C:/texts/wiki.txt:2"), ("C:/texts/wiki.txt", Some(2.0)));
        for bad in ["self:0", "self:-1", "self:inf", "self:nan"] {
            assert!(split_share(bad).unwrap_err().to_string().contains("a number above 0"), "{bad}");
        }
    }
}
