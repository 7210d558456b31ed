//! `quire scrub`: has the server of a mount read everything, and shows how far it is and what it found.

use std::path::Path;
use std::time::Duration;

use quire_base::size;
use serde_json::Value;

use crate::arguments::Scrub;
use crate::exit::{self, Failure, Outcome};
use crate::{control, output, places};

/// Between two looks at a scrub.
const LOOK: Duration = Duration::from_millis(200);

/// Starts a scrub and waits for its end, or shows or stops the one that runs.
pub fn run(arguments: &Scrub) -> Outcome {
    let dir = places::mounted(&arguments.dir)?.dir;
    if arguments.status || arguments.stop {
        let status = ask(&dir, if arguments.stop { "stop" } else { "status" })?;
        return show(&dir, &status, arguments.json);
    }
    let mut request = "start".to_owned();
    if arguments.data {
        request += " data";
    }
    if arguments.restart {
        request += " anew";
    }
    if let Some(rate) = arguments.rate {
        request += &format!(" rate={rate}");
    }
    let bar = output::bar(!arguments.json, "{bar:40} {percent:>3}% {bytes_per_sec} {elapsed}");
    let mut status = ask(&dir, &request)?;
    while status["state"] == "running" {
        std::thread::sleep(LOOK);
        status = parse(&dir, &control::ask_patiently(&dir, "scrub status")?)?;
        let read = number(&status, "metadata_bytes") + number(&status, "data_bytes");
        bar.set_length(number(&status, "expected_bytes").max(read));
        bar.set_position(read);
    }
    bar.finish_and_clear();
    show(&dir, &status, arguments.json)
}

fn ask(dir: &Path, request: &str) -> Outcome<Value> {
    parse(dir, &control::ask(dir, &format!("scrub {request}"))?)
}

fn parse(dir: &Path, answer: &str) -> Outcome<Value> {
    serde_json::from_str(answer).map_err(|error| {
        Failure::new(exit::FAILED, format!("the answer of the server of {}: {error}", dir.display()))
    })
}

fn number(status: &Value, name: &str) -> u64 {
    status[name].as_u64().unwrap_or_default()
}

/// Prints a state. What is lost or cannot be read is a failure.
fn show(dir: &Path, status: &Value, json: bool) -> Outcome {
    let list = |name: &str| status[name].as_array().cloned().unwrap_or_default();
    let (lost, unreadable) = (list("lost"), list("unreadable"));
    if json {
        output::line(format_args!("{status:#}"));
    } else {
        for why in &lost {
            output::line(format_args!("lost: {}", why.as_str().unwrap_or_default()));
        }
        for part in &unreadable {
            output::line(format_args!(
                "unreadable: {}: {} bytes from {} on: {}",
                part["path"].as_str().unwrap_or_default(),
                number(part, "bytes"),
                number(part, "offset"),
                part["why"].as_str().unwrap_or_default(),
            ));
        }
        output::line(format_args!("{}: {}", dir.display(), summary(status)));
    }
    if status["state"] == "failed" {
        return Err(Failure::new(exit::FAILED, status["why"].as_str().unwrap_or("the scrub failed")));
    }
    let (before, parts_before) = (number(status, "lost_before"), number(status, "unreadable_before"));
    let (lost, parts) = (lost.len() as u64 + before, unreadable.len() as u64 + parts_before);
    if lost + parts == 0 {
        return Ok(());
    }
    let named = match before + parts_before {
        0 => "",
        _ => " (the server's log names those that were found before the scrub was interrupted)",
    };
    Err(Failure::new(
        exit::DAMAGED,
        format!(
            "{lost} pieces of metadata are lost, {parts} parts of files cannot be read{named}: copy the files that \
             can be read, then unmount and run `quire fsck`"
        ),
    ))
}

fn summary(status: &Value) -> String {
    let state = match status["state"].as_str().unwrap_or_default() {
        "never" => return "never scrubbed".into(),
        "running" => "being scrubbed",
        "interrupted" => "the scrub was interrupted",
        "stopped" => "the scrub was stopped",
        "failed" => "the scrub failed",
        _ => "scrubbed",
    };
    let when = status["ended"].as_f64().map(|seconds| format!(" ({})", ago(seconds))).unwrap_or_default();
    format!(
        "{state}{when}: {} of metadata, {} of {} files, in {:.1} s; {} bad copies, {} of them written anew",
        size::show(number(status, "metadata_bytes")),
        size::show(number(status, "data_bytes")),
        number(status, "files"),
        status["seconds"].as_f64().unwrap_or_default(),
        number(status, "damaged"),
        number(status, "healed"),
    )
}

/// How long ago a time was, given in seconds since 1970.
fn ago(seconds: f64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let passed = (now.as_secs_f64() - seconds).max(0.0) as u64;
    match passed {
        0..120 => format!("{passed} s ago"),
        120..7200 => format!("{} min ago", passed / 60),
        7200..172_800 => format!("{} h ago", passed / 3600),
        _ => format!("{} days ago", passed / 86_400),
    }
}
