//! Tracing one operation: every memory access between its first and its last instruction.
//!
//! Protocol. The operation runs in a fork of this process, so each begins in exactly the same state, at the
//! same addresses, whatever ran before it. The fork asks to be traced and stops; the parent lets it run
//! instruction by instruction (ptrace), decodes each, and works out from the registers which bytes it reads
//! and writes. Calls and returns are followed, so that an access inside a library routine is known by its
//! caller, too.
//!
//! The second side runs where the first has run before it, untraced: both are given different journal
//! positions, inode numbers and slots, as two threads would be.
//!
//! Left out: the stack and the thread's own storage, which each thread has for itself (the fork has only one
//! thread, so both sides would seem to share them), and what is the report's own ([`super::arena`]).
//!
//! Neighbours: [`super::places`] turns addresses of code into names.

use super::arena;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register,
};
use quire_base::{Result, shard};
use quire_bench::outcome::{Outcome, Trouble, failed, os};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Bytes of a cache line.
pub const LINE: u64 = 64;
/// Instructions of one operation at most: an operation that runs in circles ends.
const STEPS_MAX: u64 = 20_000_000;
/// Nested calls that are followed.
const CALLS_MAX: usize = 512;

/// Where code touched a line: the instruction, and the return addresses of its callers, innermost first.
#[derive(Clone, Debug, Default)]
pub struct Touch {
    /// Addresses of code.
    pub code: Vec<u64>,
    /// The first byte touched there, by address.
    pub data: u64,
}

/// What an operation did to one cache line.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Its first read.
    pub read: Option<Touch>,
    /// Its first write.
    pub write: Option<Touch>,
    /// The bytes touched, one bit each.
    pub bytes: u64,
}

/// The lines that an operation touched, by address.
pub type Lines = BTreeMap<u64, Line>;

/// Marks the first traced instruction; never inlined, so that its address is passed.
#[inline(never)]
extern "C" fn window_begins() {
    std::hint::black_box(1);
}

/// Marks the last one. Another constant: two functions of the same code could become one.
#[inline(never)]
extern "C" fn window_ends() {
    std::hint::black_box(2);
}

/// An operation of a side.
pub type Run<'a> = &'a dyn Fn(usize) -> Result<()>;

/// Runs the operation of the last of `sides` in a fork, as the thread of its shard, behind those of the
/// others, and gives what it touched. The calling thread's stack must be a spawned thread's.
pub fn trace(sides: &[usize], operation: Run<'_>) -> Outcome<Lines> {
    let private = thread_memory()?;
    // SAFETY: the child runs the operation on a copy of this thread and ends without running anything else of
    // ours.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(Trouble::Failed(os("fork")(std::io::Error::last_os_error()))),
        0 => run_traced(sides, operation),
        _ => Tracer::new(child, private).run(),
    }
}

fn run_traced(sides: &[usize], operation: Run<'_>) -> ! {
    let (last, before) = sides.split_last().expect("somebody is traced");
    let be = |side: usize| {
        arena::enter(side);
        shard::set(side);
    };
    for &side in before {
        be(side);
        must_succeed(operation(side));
    }
    be(*last);
    // SAFETY: no pointers are involved; a refusal shows at the parent, which sees no trace stop.
    unsafe {
        if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) == -1 {
            libc::_exit(REFUSED);
        }
        libc::raise(libc::SIGSTOP);
    }
    window_begins();
    must_succeed(operation(*last));
    window_ends();
    end_unfinished()
}

/// Ends the process if an operation failed, before the trace can pass for that of one that succeeded.
fn must_succeed(outcome: Result<()>) {
    if let Err(error) = outcome {
        eprintln!("{error}");
        end_unfinished();
    }
}

fn end_unfinished() -> ! {
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(UNFINISHED) }
}

const REFUSED: i32 = 90;
const UNFINISHED: i32 = 91;

/// The stack of this thread with its thread-local storage.
fn thread_memory() -> Outcome<Range<u64>> {
    // SAFETY: a zeroed attribute object is what `pthread_getattr_np` initialises; it is destroyed once.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &mut attributes) != 0 {
            return Err(failed("the thread's stack is not known"));
        }
        let (mut start, mut size) = (std::ptr::null_mut(), 0);
        let found = libc::pthread_attr_getstack(&attributes, &mut start, &mut size);
        libc::pthread_attr_destroy(&mut attributes);
        if found != 0 {
            return Err(failed("the thread's stack is not known"));
        }
        Ok(start as u64..start as u64 + size as u64)
    }
}

struct Tracer {
    child: libc::pid_t,
    private: Range<u64>,
    code: HashMap<u64, Instruction>,
    /// Return addresses, outermost first.
    calls: Vec<u64>,
    lines: Lines,
}

/// The child is ended and waited for, whatever happens.
impl Drop for Tracer {
    fn drop(&mut self) {
        // SAFETY: our own child, not yet waited for to its end.
        unsafe {
            libc::kill(self.child, libc::SIGKILL);
            libc::waitpid(self.child, std::ptr::null_mut(), 0);
        }
    }
}

impl Tracer {
    fn new(child: libc::pid_t, private: Range<u64>) -> Tracer {
        Tracer { child, private, code: HashMap::new(), calls: Vec::new(), lines: Lines::new() }
    }

    fn run(mut self) -> Outcome<Lines> {
        self.wait()?;
        let (begin, end) = (window_begins as *const () as u64, window_ends as *const () as u64);
        let mut info = InstructionInfoFactory::new();
        let mut inside = false;
        for _ in 0..STEPS_MAX {
            let registers = self.registers()?;
            inside |= registers.rip == begin;
            if registers.rip == end {
                return Ok(std::mem::take(&mut self.lines));
            }
            if inside {
                let instruction = self.instruction(registers.rip)?;
                self.note(&instruction, &registers, &mut info);
            }
            self.step()?;
        }
        Err(failed("an operation takes more instructions than a trace has room for"))
    }

    fn step(&self) -> Outcome {
        // SAFETY: no pointers are involved.
        if unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.child, 0, 0) } == -1 {
            return Err(os("stepping the traced operation")(std::io::Error::last_os_error()).into());
        }
        self.wait()
    }

    /// Waits for the next stop.
    fn wait(&self) -> Outcome {
        let mut status = 0;
        // SAFETY: `status` is ours; the child is stopped or ended by what the parent does.
        if unsafe { libc::waitpid(self.child, &mut status, 0) } != self.child {
            return Err(os("waiting for the traced operation")(std::io::Error::last_os_error()).into());
        }
        if libc::WIFSTOPPED(status) {
            return Ok(());
        }
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == REFUSED {
            return Err(Trouble::Skipped("this system lets no process be traced (ptrace)".into()));
        }
        Err(failed(format!("the traced operation ended with status {status:#x}")))
    }

    fn registers(&self) -> Outcome<libc::user_regs_struct> {
        // SAFETY: the structure is plain integers, of the size that the kernel fills for this machine.
        unsafe {
            let mut registers: libc::user_regs_struct = std::mem::zeroed();
            if libc::ptrace(libc::PTRACE_GETREGS, self.child, 0, &mut registers) == -1 {
                return Err(os("reading registers")(std::io::Error::last_os_error()).into());
            }
            Ok(registers)
        }
    }

    fn instruction(&mut self, at: u64) -> Outcome<Instruction> {
        if let Some(found) = self.code.get(&at) {
            return Ok(*found);
        }
        let mut bytes = [0u8; 16];
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: bytes.len() };
        // SAFETY: `local` describes `bytes`; the remote address is only read, in the other process.
        let got = unsafe { libc::process_vm_readv(self.child, &local, 1, &remote, 1, 0) };
        // A read that would cross into nothing gives what there is, or nothing: the end of a mapping.
        let got = if got > 0 { got as usize } else { (4096 - (at % 4096) as usize).min(16) };
        let mut decoder = Decoder::with_ip(64, &bytes[..got], at, DecoderOptions::NONE);
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return Err(failed(format!("the instruction at {at:#x} is not known")));
        }
        self.code.insert(at, instruction);
        Ok(instruction)
    }

    fn note(
        &mut self,
        instruction: &Instruction,
        registers: &libc::user_regs_struct,
        info: &mut InstructionInfoFactory,
    ) {
        for memory in info.info(instruction).used_memory() {
            let (reads, writes) = match memory.access() {
                OpAccess::Read | OpAccess::CondRead => (true, false),
                OpAccess::Write | OpAccess::CondWrite => (false, true),
                OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
                OpAccess::None | OpAccess::NoMemAccess => continue,
            };
            let value = |register, _, _| value_of(register, registers);
            let Some(start) = memory.virtual_address(0, value) else { continue };
            let bytes = memory.memory_size().size() as u64;
            if bytes > 0 && !self.is_private(start, registers.fs_base) {
                self.touch(start, bytes, reads, writes, registers.rip);
            }
        }
        match instruction.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall if self.calls.len() < CALLS_MAX => {
                self.calls.push(instruction.next_ip());
            }
            FlowControl::Return => {
                self.calls.pop();
            }
            _ => {}
        }
    }

    fn is_private(&self, address: u64, thread: u64) -> bool {
        self.private.contains(&address) || address.abs_diff(thread) < 4096 || arena::is_ours(address)
    }

    fn touch(&mut self, start: u64, bytes: u64, reads: bool, writes: bool, code: u64) {
        let mut at = start;
        while at < start + bytes {
            let line = self.lines.entry(at / LINE).or_default();
            let within = at % LINE;
            let now = (start + bytes - at).min(LINE - within);
            line.bytes |= (u64::MAX >> (LINE - now)) << within;
            for first in [reads.then_some(&mut line.read), writes.then_some(&mut line.write)] {
                if let Some(first @ None) = first {
                    let code = std::iter::once(code).chain(self.calls.iter().rev().copied()).collect();
                    *first = Some(Touch { code, data: at });
                }
            }
            at += now;
        }
    }
}

fn value_of(register: Register, registers: &libc::user_regs_struct) -> Option<u64> {
    let whole = match register.full_register() {
        Register::RAX => registers.rax,
        Register::RBX => registers.rbx,
        Register::RCX => registers.rcx,
        Register::RDX => registers.rdx,
        Register::RSI => registers.rsi,
        Register::RDI => registers.rdi,
        Register::RBP => registers.rbp,
        Register::RSP => registers.rsp,
        Register::R8 => registers.r8,
        Register::R9 => registers.r9,
        Register::R10 => registers.r10,
        Register::R11 => registers.r11,
        Register::R12 => registers.r12,
        Register::R13 => registers.r13,
        Register::R14 => registers.r14,
        Register::R15 => registers.r15,
        Register::FS => registers.fs_base,
        Register::GS => registers.gs_base,
        Register::CS | Register::DS | Register::ES | Register::SS => 0,
        _ => return None,
    };
    let bits = 8 * register.size().min(8);
    Some(if register.is_segment_register() || bits == 64 { whole } else { whole & ((1 << bits) - 1) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_base::Error;

    /// The trace of an operation that failed passed for that of one that succeeded, and its message was lost:
    /// a report could count the lines of an error path and agree with the kept numbers.
    #[test]
    fn an_operation_that_fails_gives_no_trace() {
        let traced = std::thread::spawn(|| {
            let good = trace(&[0], &|_| Ok(()));
            let bad = trace(&[0], &|_| Err(Error::invalid("it fails, as the test wants")));
            (good, bad)
        });
        match traced.join().unwrap() {
            (Err(Trouble::Skipped(why)), _) => eprintln!("SKIPPED: {why}"),
            (Ok(_), Err(Trouble::Failed(error))) => assert!(error.to_string().contains("ended"), "{error}"),
            other => panic!("{other:?}"),
        }
    }
}
