//! Dates as C's `strftime` writes them, as far as chat templates ask for them. Times are UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// The first of January 1970 was a Thursday.
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const DAY: u64 = 86_400;

pub(super) fn now(format: &str) -> Result<String, String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.map_err(|_| "this machine's clock stands before 1970; set it".to_owned())?;
    at(since.as_secs(), format)
}

/// `format` for this many seconds since 1970 began.
fn at(seconds: u64, format: &str) -> Result<String, String> {
    let (days, second) = (seconds / DAY, seconds % DAY);
    let (year, month, day) = civil(days);
    let (month_name, weekday) = (MONTHS[month as usize - 1], WEEKDAYS[(days % 7) as usize]);
    let hour = second / 3600;
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        out += &match letters.next() {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('B') => month_name.into(),
            Some('b') => month_name[..3].into(),
            Some('d') => format!("{day:02}"),
            Some('e') => format!("{day:2}"),
            Some('A') => weekday.into(),
            Some('a') => weekday[..3].into(),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.into(),
            Some('M') => format!("{:02}", second / 60 % 60),
            Some('S') => format!("{:02}", second % 60),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('%') => "%".into(),
            other => {
                let letter = other.map(String::from).unwrap_or_default();
                return Err(format!("`%{letter}` of the date format `{format}` is not known"));
            }
        };
    }
    Ok(out)
}

/// Year, month and day of a day counted from 1970-01-01 in the Gregorian calendar: H. Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms", `civil_from_days`, for days that are not negative. Years begin in March, so that the leap
/// day is the last one; 400 years have 146,097 days.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        let all = "%Y-%m-%d %H:%M:%S %A %B";
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 Thursday January"),
            (951_782_400, "2000-02-29 00:00:00 Tuesday February"),
            (1_234_567_890, "2009-02-13 23:31:30 Friday February"),
            (4_102_444_799, "2099-12-31 23:59:59 Thursday December"),
            (4_107_542_400, "2100-03-01 00:00:00 Monday March"),
        ] {
            assert_eq!(at(seconds, all).unwrap(), expected);
        }
        assert_eq!(
            at(1_720_000_000, "%d %b %y, %a %e, %I:%M %p, %F, %%").unwrap(),
            "03 Jul 24, Wed  3, 09:46 AM, 2024-07-03, %"
        );
        assert!(at(0, "%").is_err() && at(0, "%k").is_err());
    }
}
