//! The `tidegate` program as a process: started, awaited, asked to end.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, ExitStatus, Stdio},
    thread::JoinHandle,
};

/// The program with these arguments; no setting comes from the environment.
pub(crate) fn tidegate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TIDEGATE_"))
    {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// The arguments of a server on a free port.
pub(crate) fn serve<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&["serve", "--listen", "127.0.0.1:0"], arguments].concat()
}

/// A `tidegate serve` that is ready. Dropping it kills it.
pub(crate) struct Serving {
    /// Where it listens.
    pub(crate) url: String,
    child: Child,
    /// Reads on, so that the server never waits for its log to be read.
    log: Option<JoinHandle<String>>,
}

impl Serving {
    /// Starts a command made with [`serve`] and waits until it says where it listens.
    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let mut lines = BufReader::new(child.stderr.take().expect("piped"));
        let mut seen = String::new();
        let url = loop {
            let mut line = String::new();
            let read = lines.read_line(&mut line).expect("text");
            seen.push_str(&line);
            assert!(read > 0, "ended before it was ready: {seen}");
            if let Some((_, rest)) = line.split_once(" on http://") {
                break format!("http://{}", rest.split(' ').next().expect("an address"));
            }
        };
        let log = std::thread::spawn(move || {
            let _ = lines.read_to_string(&mut seen);
            seen
        });
        Self {
            url,
            child,
            log: Some(log),
        }
    }

    /// Sends SIGTERM and waits; the status and what was printed and logged.
    pub(crate) fn terminate(mut self) -> (ExitStatus, String) {
        let id = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &id])
                .status()
                .expect("kill")
                .success()
        );
        let status = self.child.wait().expect("an end");
        let log = self
            .log
            .take()
            .expect("not yet joined")
            .join()
            .expect("no panic");
        (status, log)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
