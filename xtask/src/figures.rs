//! Figures live in `results/DATE-topic/figures.csv` (columns name,value,unit). The newest folder that has a name holds
//! its current value. README.md shows them between `<!-- figure NAME [DECIMALS] -->` and `<!-- /figure -->`; decimals
//! like `e1` ask for scientific notation.

use std::collections::BTreeMap;
use std::path::Path;

use crate::{Result, read, write};

struct Figure {
    value: String,
    unit: String,
    folder: String,
}

/// Current figures by name.
fn current(root: &Path) -> Result<BTreeMap<String, Figure>> {
    let results = root.join("results");
    let listing = std::fs::read_dir(&results).map_err(|error| format!("{}: {error}", results.display()))?;
    let mut folders: Vec<_> = listing.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    folders.sort();
    let mut figures = BTreeMap::new();
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        let file = folder.join("figures.csv");
        if !file.is_file() {
            continue;
        }
        for (number, line) in read(&file)?.lines().enumerate().skip(1).filter(|(_, line)| !line.is_empty()) {
            let mut fields = line.split(',');
            let (Some(name), Some(value), Some(unit), None) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                return Err(format!("{}:{}: not name,value,unit", file.display(), number + 1));
            };
            let folder = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            figures.insert(name.to_owned(), Figure { value: value.into(), unit: unit.into(), folder });
        }
    }
    Ok(figures)
}

pub fn list(root: &Path) -> Result<()> {
    for (name, figure) in current(root)? {
        println!("{name} = {} {} ({})", figure.value, figure.unit, figure.folder);
    }
    Ok(())
}

/// Rewrites README.md with the current figures.
pub fn splice(root: &Path) -> Result<()> {
    let file = root.join("README.md");
    write(&file, &spliced(&read(&file)?, &current(root)?)?)
}

/// Fails where README.md shows another value than results/.
pub fn check(root: &Path) -> Result<()> {
    let text = read(&root.join("README.md"))?;
    if spliced(&text, &current(root)?)? == text {
        return Ok(());
    }
    Err("README.md shows a figure that is not the current one in results/; run `cargo xtask readme`".into())
}

fn spliced(text: &str, figures: &BTreeMap<String, Figure>) -> Result<String> {
    const OPEN: &str = "<!-- figure ";
    const CLOSE: &str = "<!-- /figure -->";
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(OPEN) {
        let (before, marked) = rest.split_at(at);
        let Some((marker, after)) = marked[OPEN.len()..].split_once(" -->") else {
            return Err(format!("README.md: a figure marker is not closed: {}", first_line(marked)));
        };
        let Some((_, after)) = after.split_once(CLOSE) else {
            return Err(format!("README.md: figure {marker} has no {CLOSE}"));
        };
        let (name, decimals) = marker.split_once(' ').unwrap_or((marker, ""));
        let Some(figure) = figures.get(name) else {
            return Err(format!("README.md: no folder under results/ has the figure {name}"));
        };
        out += &format!("{before}{OPEN}{marker} -->{}{CLOSE}", shown(&figure.value, decimals)?);
        rest = after;
    }
    Ok(out + rest)
}

fn shown(value: &str, decimals: &str) -> Result<String> {
    if decimals.is_empty() {
        return Ok(value.to_owned());
    }
    let number: f64 = value.parse().map_err(|_| format!("{value:?} is no number"))?;
    let (scientific, decimals) = match decimals.strip_prefix('e') {
        Some(rest) => (true, rest),
        None => (false, decimals),
    };
    let decimals: usize = decimals.parse().map_err(|_| format!("{decimals:?} is no number of decimals"))?;
    Ok(if scientific { format!("{number:.decimals$e}") } else { format!("{number:.decimals$}") })
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_take_the_current_value() {
        let figure = Figure { value: "0.21384".into(), unit: "1".into(), folder: "x".into() };
        let figures = BTreeMap::from([("a.b".to_owned(), figure)]);
        let text = "x <!-- figure a.b 3 -->old<!-- /figure --> y";
        let new = spliced(text, &figures).unwrap();
        assert_eq!(new, "x <!-- figure a.b 3 -->0.214<!-- /figure --> y");
        assert_eq!(spliced(&new, &figures).unwrap(), new);
        assert_eq!(shown("1.128e-15", "e1").unwrap(), "1.1e-15");
        assert!(spliced("<!-- figure c -->1<!-- /figure -->", &figures).is_err());
        assert!(spliced("<!-- figure a.b -->1", &figures).is_err());
    }
}
