use std::fmt::Write;

use crate::atoms::picture::{self, Labels, escaped};
use crate::atoms::{Certificate, Code, Dictionary};

use super::Recovered;

/// What a page shows.
pub struct Report<'a> {
    /// What was explained, for the heading.
    pub title: &'a str,
    pub dictionary: &'a Dictionary,
    pub certificate: &'a Certificate,
    /// All rows, and their codes.
    pub x: &'a [f64],
    pub codes: &'a [Code],
    pub labels: Labels<'a>,
    /// Named numbers, in their order.
    pub measures: &'a [(String, String)],
    /// Lines on each atom, such as the order of words on it.
    pub notes: &'a [Vec<String>],
    pub recovered: Option<Recovered>,
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1c2733}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin:0 0 .4rem}table{border-collapse:collapse;margin:1rem 0}\
td,th{padding:.2rem .9rem .2rem 0;text-align:left;vertical-align:top}th{font-weight:600;color:#516070}\
.atoms{display:grid;grid-template-columns:repeat(auto-fill,minmax(20rem,1fr));gap:1.5rem}\
.atom{border:1px solid #dde3e9;border-radius:8px;padding:1rem}.atom svg{width:100%;height:auto}\
.atom p{margin:.2rem 0;color:#516070;font-size:.92rem}footer{margin-top:2rem;color:#516070;font-size:.9rem}";

/// One page of HTML with everything in it: no scripts, no network.
pub fn page(report: &Report<'_>) -> String {
    let title = escaped(report.title);
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    summary(&mut html, report);
    html.push_str("<div class=\"atoms\">\n");
    for k in 0..report.dictionary.atoms.len() {
        card(&mut html, report, k);
    }
    html.push_str("</div>\n");
    if report.dictionary.atoms.is_empty() {
        let _ = writeln!(html, "<p>No atom was born: {}.</p>", report.certificate.ending);
    }
    let work = &report.certificate.work;
    // Writing to a String cannot fail.
    let _ = writeln!(
        html,
        "<footer>Fitted by lapidary on the {} in {:.2} s: {} Newton loops, {} frames built, {} steps by a kept frame. \
         Ended by: {}.</footer>\n</body>\n</html>",
        escaped(&report.certificate.device),
        report.certificate.seconds,
        work.loops,
        work.builds,
        work.reuses,
        escaped(&report.certificate.test)
    );
    html
}

fn summary(html: &mut String, report: &Report<'_>) {
    html.push_str("<table>\n");
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(html, "<tr><th>{}</th><td>{}</td></tr>", escaped(name), escaped(value));
    };
    let certificate = report.certificate;
    line("outcome", &format!("{}; births ended since {}", certificate.outcome, certificate.ending));
    line("rows", &format!("{} of {}", report.codes.len(), report.dictionary.space.width));
    for (name, value) in report.measures {
        line(name, value);
    }
    if let Some(recovered) = report.recovered {
        line(
            "loss recovered",
            &format!(
                "{:.3} (nats a token: {:.3} as it is, {:.3} rebuilt, {:.3} at the mean)",
                recovered.share(),
                recovered.original,
                recovered.rebuilt,
                recovered.mean
            ),
        );
    }
    html.push_str("</table>\n");
}

fn card(html: &mut String, report: &Report<'_>, k: usize) {
    let atom = &report.dictionary.atoms[k];
    let _ = writeln!(html, "<section class=\"atom\"><h2>Atom {k}: {}</h2>", atom.shape);
    html.push_str(&picture::atom(report.dictionary, report.codes, report.x, k, report.labels));
    let on = report.codes.iter().flatten().filter(|active| active.atom == k).count();
    let share = 100.0 * on as f64 / report.codes.len().max(1) as f64;
    let amplitude =
        if atom.is_free() { format!(", amplitude 1 ± {:.2}", atom.spread) } else { String::new() };
    let _ = writeln!(html, "<p>on in {share:.0} % of the rows{amplitude}</p>");
    for note in report.notes.get(k).into_iter().flatten() {
        let _ = writeln!(html, "<p>{}</p>", escaped(note));
    }
    html.push_str("</section>\n");
}
