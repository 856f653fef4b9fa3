//! Running the command on a terminal.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// What takes a line of the terminal back.
pub(crate) const ERASE: &str = "\r\x1b[2K";

/// A terminal: the end that reads what is shown, and the end for a process.
pub(crate) fn terminal(columns: u16) -> (File, File) {
    let reader = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&reader).unwrap();
    unlockpt(&reader).unwrap();
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let name = ptsname(&reader, Vec::new()).unwrap().into_string().unwrap();
    let writer = File::options().read(true).write(true).open(Path::new(&name)).unwrap();
    tcsetwinsize(&writer, size).unwrap();
    (File::from(reader), writer)
}

/// What a run shows on a terminal as its standard error; `interrupt` is as by Ctrl-C, once something is shown.
pub(crate) fn shown(columns: u16, command: &mut Command, interrupt: bool) -> (String, Option<i32>) {
    let (mut reader, writer) = terminal(columns);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
    let mut child = command.spawn().unwrap();
    // The command keeps its end of the terminal open until it is given another.
    command.stderr(Stdio::null());
    let (begin, begun) = std::sync::mpsc::channel();
    let read = std::thread::spawn(move || {
        let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
        // The end is an error on Linux.
        while let Ok(count @ 1..) = reader.read(&mut part) {
            bytes.extend(&part[..count]);
            let _ = begin.send(());
        }
        String::from_utf8_lossy(&bytes).into_owned()
    });
    if interrupt {
        begun.recv().unwrap();
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    }
    let status = child.wait().unwrap();
    (read.join().unwrap(), status.code())
}
