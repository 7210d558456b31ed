//! C and C++ programs over the library: the code of the manual, the examples, and one that calls every
//! function.
//!
//! Each is compiled with warnings as errors by the compilers that are there, and run: as it is, with
//! AddressSanitizer and UBSan, and under valgrind if that is installed. The library is the one that
//! `scripts/c-library` makes.
//!
//! Valgrind runs one thread at a time, and Debian's holds that turn while a thread waits in `io_uring_enter`:
//! nothing else would ever run. So the kernel refuses rings to programs under valgrind, and the library falls
//! back to ordinary file I/O there.

use crate::support::{flags, here, installed, library, succeed};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Has the kernel refuse rings to a program (`ENOSYS`).
fn without_rings(command: &mut Command) {
    const fn statement(code: u32, k: u32) -> libc::sock_filter {
        libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
    }
    let refuse = move || {
        let mut filter = [
            // The number of the call is the first word of what a filter sees.
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
            libc::sock_filter {
                jf: 1,
                ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_io_uring_setup as u32)
            },
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the filter is there while the kernel copies it.
        let outcome = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
                | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
        };
        if outcome == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: two system calls and the stack.
    unsafe { command.pre_exec(refuse) };
}

/// A way to compile a program.
#[derive(Clone, Copy, Debug)]
struct Build {
    compiler: &'static str,
    standard: &'static str,
    more: &'static [&'static str],
}

const SANITIZED: &[&str] = &["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

fn builds(of_cpp: bool) -> Vec<Build> {
    let mut found = Vec::new();
    for (compiler, standards) in [("gcc", ["-std=c11", "-std=c17"]), ("clang", ["-std=c11", "-std=c17"])] {
        for standard in standards {
            found.push(Build { compiler, standard, more: &["-O2", "-g"] });
        }
        found.push(Build { compiler, standard: "-std=c17", more: SANITIZED });
    }
    let cpp = |compiler, more| Build { compiler, standard: "-std=c++17", more };
    if of_cpp {
        found = vec![cpp("g++", &["-O2", "-g"]), cpp("g++", SANITIZED)];
        found.extend([cpp("clang++", &["-O2", "-g"]), cpp("clang++", SANITIZED)]);
    }
    found.retain(|build| installed(build.compiler));
    found
}

impl Build {
    fn compile(self, source: &Path, to: &Path) {
        let mut command = Command::new(self.compiler);
        command.args([
            self.standard,
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Wshadow",
            "-Wconversion",
            "-Werror",
        ]);
        if self.compiler.ends_with("++") {
            command.args(["-x", "c++"]);
        }
        command.args(self.more).arg(source).arg("-o").arg(to).args(flags(&[]));
        succeed(&mut command);
    }
}

/// Compiles and runs a program in every way; gives what it last wrote.
fn everywhere(source: &Path, builds: &[Build]) -> String {
    assert!(!builds.is_empty(), "a compiler is installed");
    let directory = tempfile::tempdir().expect("a directory");
    let mut said = String::new();
    for (n, build) in builds.iter().enumerate() {
        let program = directory.path().join(format!("program{n}"));
        build.compile(source, &program);
        let run = |mut command: Command| {
            let image = directory.path().join("image");
            let _ = std::fs::remove_file(&image);
            succeed(command.arg(&image).env("LD_LIBRARY_PATH", library().join("lib")))
        };
        said = run(Command::new(&program));
        if n == 0 && installed("valgrind") {
            let mut valgrind = Command::new("valgrind");
            // Rust's standard library keeps a pointer into its description of the main thread, not to its
            // start: valgrind calls that possibly lost.
            valgrind.args(["--quiet", "--error-exitcode=99", "--leak-check=full"]);
            valgrind.args(["--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"]);
            valgrind.arg(&program);
            without_rings(&mut valgrind);
            run(valgrind);
        } else if n == 0 {
            println!("SKIPPED: valgrind is not installed");
        }
    }
    said
}

/// The programs of the manual: its blocks of C.
fn manual() -> Vec<String> {
    let page = std::fs::read_to_string(here().join("../../docs/c.md")).expect("docs/c.md");
    let blocks = page.split("\n```c\n").skip(1);
    blocks.map(|rest| rest.split_once("```").expect("the end of a block").0.to_owned()).collect()
}

/// What the first program of the manual says.
const HELLO: &str = "at offset 0: started\n";

fn without_compiler() -> bool {
    let missing = !installed("gcc") || !installed("pkg-config");
    if missing {
        println!("SKIPPED: gcc or pkg-config is not installed");
    }
    missing
}

#[test]
fn the_code_of_the_manual_runs() {
    if without_compiler() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let said: Vec<String> = manual()
        .iter()
        .enumerate()
        .map(|(n, code)| {
            let source = directory.path().join(format!("program{n}.c"));
            std::fs::write(&source, code).expect("writing the source");
            everywhere(&source, &builds(false))
        })
        .collect();
    assert_eq!(said, [HELLO, "alice 900, bob 1100\n"]);
}

#[test]
fn the_examples_run() {
    if without_compiler() {
        return;
    }
    let queue = everywhere(&here().join("examples/queue.c"), &builds(false));
    assert_eq!(queue, "1024 blocks written, durable and read back\n");
    let group = everywhere(&here().join("examples/group.c"), &builds(false));
    assert_eq!(group, "killed after 500 transfers or more: all are there, and the sum is 100000\n");
    let log = everywhere(&here().join("examples/log.cpp"), &builds(true));
    assert_eq!(log, "today: 800 records\n");
}

#[test]
fn every_function_does_what_the_header_says() {
    let source = here().join("tests/c/interface.c");
    let text = std::fs::read_to_string(&source).expect("the source");
    let header = std::fs::read_to_string(here().join("include/quire.h")).expect("the header");
    let functions: Vec<&str> = header
        .lines()
        .filter(|line| !line.starts_with("//") && line.contains('('))
        .filter_map(|line| line.split('(').next()?.split([' ', '*']).next_back())
        .filter(|name| name.starts_with("quire_"))
        .collect();
    assert!(functions.len() > 60, "{functions:?}");
    for function in &functions {
        assert!(text.contains(&format!("{function}(")), "{function} is not called by {}", source.display());
    }
    if without_compiler() {
        return;
    }
    let said = everywhere(&source, &builds(false));
    assert_eq!(said, "every function does what quire.h says\n");
    let cpp: Vec<Build> =
        builds(true).into_iter().map(|build| Build { standard: "-std=gnu++20", ..build }).collect();
    everywhere(&source, &cpp);

    // Exactly these are exported, with a version.
    let symbols =
        succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(library().join("lib/libquire.so")));
    let mut exported: Vec<&str> =
        symbols.lines().filter_map(|line| line.split(' ').next_back()?.strip_suffix("@@QUIRE_1.0")).collect();
    let mut functions = functions;
    functions.sort_unstable();
    exported.sort_unstable();
    assert_eq!(exported, functions);
    let others = symbols.lines().filter(|line| !line.contains("QUIRE_1.0")).collect::<Vec<_>>();
    assert_eq!(others, [""; 0], "nothing else is exported");
}

/// The archive has what a program needs, and pkg-config says what else.
#[test]
fn programs_can_be_linked_statically() {
    if without_compiler() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (source, program) = (directory.path().join("hello.c"), directory.path().join("hello"));
    std::fs::write(&source, &manual()[0]).expect("writing the source");
    let archive: PathBuf = library().join("lib/libquire.a");
    let rest = flags(&["--static"]).into_iter().filter(|flag| flag != "-lquire");
    succeed(Command::new("gcc").arg(&source).arg("-o").arg(&program).arg(archive).args(rest));
    assert_eq!(succeed(Command::new(&program).arg(directory.path().join("image"))), HELLO);
}
