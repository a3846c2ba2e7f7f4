use std::fmt::Write as _;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};
use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, header};
use ureq::{Agent, Body};

use super::listing::{Listing, Sibling};
use super::{HubError, HubId, HubParams, Progress};
use crate::device::sync_folder;

/// Largest answer that lists a repository, in bytes.
const MAX_LISTING: u64 = 64 << 20;
/// How often a file whose connection breaks is continued before the run gives up.
const ATTEMPTS: usize = 5;
const TIMEOUT: Duration = Duration::from_secs(30);

/// A client of one hub.
pub(super) struct Client<'a> {
    params: &'a HubParams,
    agent: Agent,
}

/// Whether the hub answered at all.
pub(super) enum Reached<T> {
    Yes(T),
    /// And what kept it from that.
    No(String),
}

impl<'a> Client<'a> {
    pub fn new(params: &'a HubParams) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Large files are redirected to other hosts, which the token is not for.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(TIMEOUT))
            .timeout_recv_response(Some(TIMEOUT))
            .timeout_per_read(Some(TIMEOUT))
            .user_agent(concat!("lapidary/", env!("CARGO_PKG_VERSION")));
        Self { params, agent: config.build().new_agent() }
    }

    /// The files of the revision.
    pub fn listing(&self, id: &HubId) -> Result<Reached<Listing>, HubError> {
        let (repository, revision) = (&id.repository, encoded(id.revision()));
        let url = format!("{}/api/models/{repository}/revision/{revision}?blobs=true", self.params.endpoint);
        let mut answer = match self.get(&url, 0) {
            Ok(answer) => answer,
            Err(error) => return Ok(Reached::No(error.to_string())),
        };
        let status = answer.status().as_u16();
        match status {
            200 => {}
            401 | 403 | 404 => {
                let endpoint = self.params.endpoint.clone();
                return Err(HubError::Refused { id: id.to_string(), endpoint, status });
            }
            _ => return Err(HubError::Status { url, status }),
        }
        let wrong = |problem: String| HubError::Answer { url: url.clone(), problem };
        let text = answer.body_mut().with_config().limit(MAX_LISTING).read_to_vec();
        let text = text.map_err(|error| wrong(error.to_string()))?;
        let listing: Listing =
            serde_json::from_slice(&text).map_err(|error| wrong(format!("no list of files: {error}")))?;
        if !Listing::is_commit(&listing.sha) {
            return Err(wrong("its commit is not forty hexadecimal digits".into()));
        }
        Ok(Reached::Yes(listing))
    }

    /// Brings one file into `folder`, unless it is there.
    pub fn file(
        &self,
        id: &HubId,
        commit: &str,
        file: &Sibling,
        folder: &Path,
        observe: &dyn Fn(Progress),
    ) -> Result<(), HubError> {
        let target = folder.join(&file.name);
        let (endpoint, repository) = (&self.params.endpoint, &id.repository);
        let url = format!("{endpoint}/{repository}/resolve/{commit}/{}", encoded(&file.name));
        let size = file.size.ok_or_else(|| HubError::Answer {
            url: url.clone(),
            problem: "the list of files gives it no size".into(),
        })?;
        if fs::metadata(&target).is_ok_and(|there| there.len() == size) {
            return Ok(());
        }
        let temporary = folder.join(format!("{}.part", file.name));
        let io_error = |source| HubError::Io { file: temporary.clone(), source };
        let mut part =
            File::options().read(true).append(true).create(true).open(&temporary).map_err(io_error)?;
        match part.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(HubError::Busy { file: temporary }),
            Err(TryLockError::Error(source)) => return Err(io_error(source)),
        }
        let mut problem = String::new();
        for _ in 0..ATTEMPTS {
            let here = part.metadata().map_err(io_error)?.len();
            if here >= size {
                break;
            }
            let mut show = |here| observe(Progress::File { name: &file.name, here, size });
            problem = match self.append(&url, &mut part, here, size, &mut show)? {
                Ended::Whole => "whole".into(),
                Ended::Broken(problem) => problem,
            };
        }
        let got = part.metadata().map_err(io_error)?.len();
        if got > size {
            fs::remove_file(&temporary).map_err(io_error)?;
        }
        if got != size {
            return Err(HubError::Incomplete { file: temporary, got, expected: size, problem });
        }
        if let Some(lfs) = &file.lfs {
            let found = checksum(&mut part).map_err(io_error)?;
            if found != lfs.sha256 {
                fs::remove_file(&temporary).map_err(io_error)?;
                return Err(HubError::Checksum { file: target, found, expected: lfs.sha256.clone() });
            }
        }
        part.sync_all().map_err(io_error)?;
        fs::rename(&temporary, &target).map_err(io_error)?;
        sync_folder(folder).map_err(io_error)
    }

    /// One request for what is missing of a file.
    fn append(
        &self,
        url: &str,
        part: &mut File,
        here: u64,
        size: u64,
        show: &mut dyn FnMut(u64),
    ) -> Result<Ended, HubError> {
        let mut answer = match self.get(url, here) {
            Ok(answer) => answer,
            Err(error) => return Ok(Ended::Broken(error.to_string())),
        };
        let mut at = match answer.status().as_u16() {
            // The server sends everything, whatever was asked for.
            200 => 0,
            206 if starts_at(&answer) == Some(here) => here,
            206 => {
                let problem = format!("the server sends another part than the one from byte {here}");
                return Err(HubError::Answer { url: url.into(), problem });
            }
            status @ (408 | 429 | 500..) => return Ok(Ended::Broken(format!("the server answers {status}"))),
            status => return Err(HubError::Status { url: url.into(), status }),
        };
        let io_error = |source| HubError::Io { file: url.into(), source };
        if at == 0 {
            part.set_len(0).map_err(io_error)?;
        }
        let mut body = answer.body_mut().as_reader();
        let mut buffer = vec![0; 1 << 18];
        loop {
            let read = match body.read(&mut buffer) {
                Ok(0) => return Ok(Ended::Whole),
                Ok(read) => read,
                Err(error) => return Ok(Ended::Broken(error.to_string())),
            };
            part.write_all(&buffer[..read]).map_err(io_error)?;
            at += read as u64;
            show(at);
            if at > size {
                let problem = format!("more than the {size} bytes that the file has");
                return Ok(Ended::Broken(problem));
            }
        }
    }

    fn get(&self, url: &str, from: u64) -> Result<Response<Body>, ureq::Error> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.params.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if from > 0 {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        request.call()
    }
}

/// How a request's answer ended.
enum Ended {
    Whole,
    Broken(String),
}

/// The first byte of `Content-Range: bytes 100-199/200`.
fn starts_at(answer: &Response<Body>) -> Option<u64> {
    let range = answer.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.trim().strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

fn checksum(file: &mut File) -> io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A path's part as an address has it: letters, digits, `-`, `.`, `_` and `~` stay.
fn encoded(part: &str) -> String {
    let mut out = String::new();
    for byte in part.bytes() {
        match byte {
            b'-' | b'.' | b'_' | b'~' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => out.push(byte.into()),
            _ => write!(out, "%{byte:02X}").expect("a string takes any text"),
        }
    }
    out
}
