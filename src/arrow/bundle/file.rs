use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::{Bundle, CAMERA, Observation, POINT};
use crate::arrow::Vector;

/// Why a file is not a bundle-adjustment problem.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("{file}: cannot be read: {source}")]
    Unreadable { file: PathBuf, source: std::io::Error },
    #[error("{file}: the text ends before {what}; the file is incomplete, fetch it again")]
    Ended { file: PathBuf, what: String },
    #[error("{file}: `{text}` stands where {what} is expected")]
    NotANumber { file: PathBuf, text: String, what: String },
    #[error("{file}: {what} is {got}, and there are only {count}")]
    OutOfRange { file: PathBuf, what: String, got: usize, count: usize },
    #[error(
        "{file}: {what} {index} is in no observation, so nothing determines it; take it out and number the rest anew"
    )]
    Unseen { file: PathBuf, what: &'static str, index: usize },
    #[error("{file}: {what}")]
    Empty { file: PathBuf, what: &'static str },
}

/// Reads a problem in the text format of "Bundle Adjustment in the Large" (one of its `.txt` files), and the point
/// `z` that it starts from: all points (3 numbers each) as rows, all cameras (9 each) as the border.
///
/// # Errors
/// A file that cannot be read, or text that is no such problem: what stands where.
pub fn read(file: &Path) -> Result<(Bundle, Vector), BundleError> {
    let text = std::fs::read_to_string(file)
        .map_err(|source| BundleError::Unreadable { file: file.into(), source })?;
    let mut words = Words { file, words: text.split_ascii_whitespace() };
    let cameras: usize = words.next(|| "the number of cameras".into())?;
    let points: usize = words.next(|| "the number of points".into())?;
    let count: usize = words.next(|| "the number of observations".into())?;
    if cameras == 0 || points == 0 || count == 0 {
        let what = "there are no cameras, no points or no observations";
        return Err(BundleError::Empty { file: file.into(), what });
    }
    let mut observations = Vec::new();
    for k in 0..count {
        let camera = words.index(cameras, || format!("the camera of observation {k}"))?;
        let point = words.index(points, || format!("the point of observation {k}"))?;
        let pixel = [
            words.finite(|| format!("x of observation {k}"))?,
            words.finite(|| format!("y of observation {k}"))?,
        ];
        observations.push(Observation { camera, point, pixel });
    }
    all_seen(file, "camera", cameras, observations.iter().map(|o| o.camera))?;
    all_seen(file, "point", points, observations.iter().map(|o| o.point))?;
    let mut z = Vector::default();
    for k in 0..cameras {
        for _ in 0..CAMERA {
            z.border.push(words.finite(|| format!("a number of camera {k}"))?);
        }
    }
    for k in 0..points {
        for _ in 0..POINT {
            z.row.push(words.finite(|| format!("a coordinate of point {k}"))?);
        }
    }
    Ok((Bundle::new(cameras, points, observations), z))
}

/// What nothing sees has a zero block, which no relative ridge can repair.
fn all_seen(
    file: &Path,
    what: &'static str,
    count: usize,
    seen: impl Iterator<Item = usize>,
) -> Result<(), BundleError> {
    let seen: HashSet<usize> = seen.collect();
    match (0..count).find(|index| !seen.contains(index)) {
        Some(index) => Err(BundleError::Unseen { file: file.into(), what, index }),
        None => Ok(()),
    }
}

struct Words<'a> {
    file: &'a Path,
    words: std::str::SplitAsciiWhitespace<'a>,
}

impl Words<'_> {
    fn next<T: std::str::FromStr>(&mut self, what: impl Fn() -> String) -> Result<T, BundleError> {
        let file = || self.file.to_owned();
        let word = self.words.next().ok_or_else(|| BundleError::Ended { file: file(), what: what() })?;
        word.parse().map_err(|_| {
            let text = word.chars().take(40).collect();
            BundleError::NotANumber { file: file(), text, what: what() }
        })
    }

    fn finite(&mut self, what: impl Fn() -> String) -> Result<f64, BundleError> {
        let value: f64 = self.next(&what)?;
        if value.is_finite() {
            return Ok(value);
        }
        Err(BundleError::NotANumber { file: self.file.into(), text: value.to_string(), what: what() })
    }

    fn index(&mut self, count: usize, what: impl Fn() -> String) -> Result<usize, BundleError> {
        let got = self.next(&what)?;
        if got < count {
            return Ok(got);
        }
        Err(BundleError::OutOfRange { file: self.file.into(), what: what(), got, count })
    }
}
