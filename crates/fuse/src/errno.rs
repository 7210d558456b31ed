//! Error numbers of answers that are about the protocol itself. Those of failures are
//! [`quire::Error::errno`].

/// "This server does not have that request": the kernel then stops sending it.
pub const NOT_IMPLEMENTED: i32 = libc::ENOSYS;
/// "The server is going away": what requests get after an ordered stop has begun.
pub const NOT_CONNECTED: i32 = libc::ENOTCONN;
