//! The program `quire`: make, mount, unmount, check and look into volumes.
//!
//! It answers to several names: `mount.quire`, `mount.fuse.quire` and `mount.fuseblk.quire` (mount(8) and
//! /etc/fstab), `umount.quire`, `mkfs.quire`, `fsck.quire`.
//!
//! | module | what |
//! | --- | --- |
//! | [`arguments`], [`values`], [`mount_options`], [`mount_helper`] | what people write |
//! | [`commands`] | one module a command |
//! | [`server`] | the process behind a mount |
//! | [`control`], [`task`], [`frames`], [`exposition`] | talking to it beside the mount; its numbers as text |
//! | [`mount_check`], [`notify`] | before a mount; telling systemd that it is usable |
//! | [`places`], [`image`] | which volume a path stands for; reading volumes without opening them |
//! | [`exit`], [`logging`], [`output`] | what people read |

mod arguments;
mod commands;
mod control;
mod exit;
mod exposition;
mod frames;
mod image;
mod logging;
mod mount_check;
mod mount_helper;
mod mount_options;
mod notify;
mod output;
mod places;
mod server;
mod task;
mod values;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, ExitCode};

use clap::Parser;
use clap::error::ErrorKind as ParseError;

use arguments::{Cli, Command, Mount, Umount};
use exit::{Failure, Outcome};

/// fsck(8): wrong usage.
const FSCK_USAGE: u8 = 16;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_else(|| "quire".into());
    let rest: Vec<OsString> = arguments.collect();
    let name = Path::new(&program).file_name().unwrap_or(OsStr::new("quire")).to_string_lossy().into_owned();
    match name.as_str() {
        "mount.quire" | "mount.fuse.quire" | "mount.fuseblk.quire" => {
            let outcome = mount_as_helper(&name, rest);
            finish(
                &name,
                outcome.map_err(|failure| Failure { code: exit::for_mount_helper(failure.code), ..failure }),
            )
        }
        "umount.quire" | "umount.fuse.quire" | "umount.fuseblk.quire" => {
            finish(&name, umount_as_helper(&name, rest))
        }
        "mkfs.quire" => run(prefixed("mkfs", rest)),
        "fsck.quire" => run(prefixed("fsck", rest)),
        _ => run(std::iter::once("quire".into()).chain(rest).collect()),
    }
}

fn prefixed(command: &str, rest: Vec<OsString>) -> Vec<OsString> {
    ["quire".into(), command.into()].into_iter().chain(rest).collect()
}

fn finish(name: &str, outcome: Outcome) -> ExitCode {
    match outcome.and_then(|()| output::verdict()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{name}: {failure}");
            failure.exit_code()
        }
    }
}

fn run(line: Vec<OsString>) -> ExitCode {
    let is_fsck = line.get(1).is_some_and(|command| command == "fsck");
    let cli = match Cli::try_parse_from(line) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return match error.kind() {
                ParseError::DisplayHelp | ParseError::DisplayVersion => ExitCode::SUCCESS,
                _ if is_fsck => ExitCode::from(FSCK_USAGE),
                _ => ExitCode::from(exit::USAGE),
            };
        }
    };
    let outcome = match cli.command {
        Command::Mkfs(arguments) => commands::mkfs::run(&arguments),
        Command::Mount(arguments) => commands::mount::run(&arguments),
        Command::Umount(arguments) => commands::umount::run(&arguments),
        Command::Fsck(arguments) => return commands::fsck::run(&arguments),
        Command::Salvage(arguments) => commands::salvage::run(&arguments),
        Command::Info(arguments) => commands::info::run(&arguments),
        Command::Snapshot(arguments) => commands::snapshot::run(&arguments),
        Command::Replicate(arguments) => commands::replicate::run(&arguments),
        Command::Send(arguments) => commands::stream::send(&arguments),
        Command::Receive(arguments) => commands::stream::receive(&arguments),
        Command::Backup(arguments) => commands::backup::run(&arguments),
        Command::Grow(arguments) => commands::grow::run(&arguments),
        Command::Resize(arguments) => commands::resize::run(&arguments),
        Command::Uuid(arguments) => commands::resize::uuid(&arguments),
        Command::Label(arguments) => commands::resize::label(&arguments),
        Command::Dump(arguments) => commands::dump::run(&arguments),
        Command::Up(arguments) => commands::up::run(&arguments),
        Command::Top(arguments) => commands::top::run(&arguments),
        Command::Ctl(arguments) => commands::ctl::run(&arguments),
        Command::Scrub(arguments) => commands::scrub::run(&arguments),
        Command::Trim(arguments) => commands::trim::run(&arguments),
        Command::Freeze(arguments) => commands::freeze::freeze(&arguments),
        Command::Thaw(arguments) => commands::freeze::thaw(&arguments),
        Command::Get(arguments) => commands::properties::get(&arguments),
        Command::Set(arguments) => commands::properties::set(&arguments),
        Command::Lease(arguments) => commands::lease::run(&arguments),
        Command::Man { dir } => commands::generate::manual(&dir),
        Command::Completions { shell } => commands::generate::completions(shell),
        Command::Bench(arguments) => commands::bench::run(&arguments),
        Command::Probe(arguments) => commands::probe::run(&arguments),
        Command::BenchNull(arguments) => commands::bench_null::run(&arguments),
    };
    finish("quire", outcome)
}

fn mount_as_helper(name: &str, rest: Vec<OsString>) -> Outcome {
    let call = mount_helper::parse(rest).map_err(Failure::usage)?;
    let [volume, dir] = call.operands.as_slice() else {
        return Err(Failure::usage(format!("usage: {name} SOURCE DIR [-sfnv] [-o OPTIONS]")));
    };
    let options = if call.sloppy { mount_options::known_only(&call.options) } else { call.options };
    let arguments = Mount {
        options,
        foreground: false,
        supervise: false,
        watch: false,
        report: false,
        volume: volume.into(),
        dir: dir.into(),
    };
    if call.fake {
        return mount_check::check(&arguments).map(drop);
    }
    commands::mount::run(&arguments)?;
    if call.verbose {
        output::line(format_args!(
            "{name}: {} mounted on {}",
            arguments.volume.display(),
            arguments.dir.display()
        ));
    }
    Ok(())
}

fn umount_as_helper(name: &str, rest: Vec<OsString>) -> Outcome {
    let call = mount_helper::parse(rest).map_err(Failure::usage)?;
    let [dir] = call.operands.as_slice() else {
        return Err(Failure::usage(format!("usage: {name} DIR [-flnrv]")));
    };
    if call.force {
        // Nothing is asked of the server. umount(8) has the kernel cut it off.
        let mut umount = process::Command::new("umount");
        umount.args(["--internal-only", "--force"]).args(call.lazy.then_some("--lazy")).arg("--").arg(dir);
        return Err(Failure::system("running umount", &umount.exec()));
    }
    commands::umount::run(&Umount { lazy: call.lazy, dir: dir.into() })
}
