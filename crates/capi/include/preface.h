// Quire: a crash-safe, journaling file system in user space, for C and C++.
//
// A volume is an image file or a block device. A program opens it by itself, without a mount or privileges. docs/c.md is
// the manual, docs/durability.md says what is there after a crash.
//
// Results. A function that can fail returns a negative error number (-ENOENT); quire_error_message() then has a text
// for the calling thread, which says what was being done, to what, and why it failed; the text is valid until the next
// call on that thread. Numbers that nothing else gives:
// -EUCLEAN, the volume is damaged; -ENOTRECOVERABLE, the library has met a defect of its own: close the volume.
//
// Ownership. A handle belongs to the program from the function that made it until the function that closes or frees it.
// A file's handle keeps what it needs of its volume. Texts and structures that a program gives are its own and are not
// kept. Memory of a submitted request belongs to the request until its completion has been reaped.
//
// Threads. Any function may be called from any thread, at the same time as any other and on the same handles, except
// where its comment says otherwise: a handle is closed when no other call uses it. A child that fork(2) makes gets
// -EPERM for the handles of its parent, and closing them there does nothing.
//
// Paths begin at the root of the volume, with a slash or without.
//
// Structures of options begin with their size: set that field to sizeof the structure, all others to zero, and then
// those that matter. Structures that the library fills have spare words, which it sets to zero. Of the structures that
// a program fills, quire_properties and quire_sync_options have some: they must be zero (-E2BIG). Flags that the library
// does not know give -EINVAL.
//
// Stability. This is version 1 of the interface, libquire.so.1. As long as that number stands, programs that were
// linked with an older library run with a newer one: functions and fields are added, and none changes or goes.

