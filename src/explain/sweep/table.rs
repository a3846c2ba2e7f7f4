use std::fmt::Write;

use super::{Record, State};
use crate::atoms::picture::escaped;

/// One line a fit, in the order of the battery.
pub fn csv(records: &[Record]) -> String {
    let mut text = "rows,shapes,atoms,seed,state,outcome,explained,l0,dead,found\n".to_owned();
    let quoted = |field: &str| format!("\"{}\"", field.replace('"', "\"\""));
    for Record { cell, state } in records {
        let rest = match state {
            State::Fitted { outcome, explained, l0, dead, found } => {
                format!("fitted,{outcome},{explained},{l0},{dead},{}", quoted(found))
            }
            State::Failed { error } => format!("failed,{},,,,", quoted(error)),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{},{},{},{},{rest}",
            quoted(&cell.rows),
            quoted(&cell.shapes),
            cell.atoms,
            cell.seed
        );
    }
    text
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1c2733}\
h1{font-size:1.5rem}table{border-collapse:collapse}td,th{padding:.25rem .9rem .25rem 0;text-align:left}\
th{font-weight:600;color:#516070}td.n{text-align:right;font-variant-numeric:tabular-nums}\
.bar{display:inline-block;height:.6rem;background:#3b7dd8;border-radius:2px}.failed{color:#b3261e}";

/// One page of HTML with all fits: no scripts, no network.
pub fn page(title: &str, records: &[Record]) -> String {
    let title = escaped(title);
    let failed = records.iter().filter(|record| matches!(record.state, State::Failed { .. })).count();
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<p>{} fits, {failed} failed.</p>\n<table>\n\
         <tr><th>rows</th><th>shapes</th><th>atoms</th><th>seed</th><th>explained</th><th></th><th>L0</th><th>dead</th>\
         <th>found</th><th>outcome</th></tr>\n",
        records.len()
    );
    for Record { cell, state } in records {
        let _ = write!(
            html,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>",
            escaped(&cell.rows),
            escaped(&cell.shapes),
            cell.atoms,
            cell.seed
        );
        let _ = match state {
            State::Fitted { outcome, explained, l0, dead, found } => writeln!(
                html,
                "<td class=\"n\">{explained:.4}</td><td><span class=\"bar\" style=\"width:{:.0}px\"></span></td>\
                 <td class=\"n\">{l0:.2}</td><td class=\"n\">{:.1} %</td><td>{}</td><td>{}</td></tr>",
                120.0 * explained.clamp(0.0, 1.0),
                100.0 * dead,
                escaped(found),
                escaped(outcome)
            ),
            State::Failed { error } => {
                writeln!(html, "<td colspan=\"6\" class=\"failed\">{}</td></tr>", escaped(error))
            }
        };
    }
    html.push_str("</table>\n</body>\n</html>\n");
    html
}
