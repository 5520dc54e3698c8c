//! A `tidegate serve` of the same build as a child of this process: started on a free port, awaited, ended.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use super::Failure;

/// What the server gets to end by itself.
const GRACE: Duration = Duration::from_secs(15);

/// A server that is ready. Dropping it ends exactly this child.
pub(crate) struct Server {
    pub(crate) url: String,
    child: Child,
}

impl Server {
    /// Starts it and waits until it says where it listens.
    pub(crate) fn start(
        program: Option<&Path>,
        arguments: &[String],
        slots: usize,
    ) -> Result<Self, Failure> {
        let built = PathBuf::from(env!("CARGO_BIN_EXE_tidegate"));
        let program = program.unwrap_or(&built);
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TIDEGATE_") {
                command.env_remove(name);
            }
        }
        command.args(["serve", "--listen", "127.0.0.1:0", "--grace-s", "0"]);
        command.args(arguments);
        if !arguments.iter().any(|a| a.starts_with("--slots")) {
            command.args(["--slots", &slots.to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::piped());
        // SAFETY: prctl is a plain system call, as is needed between fork and exec. The main thread starts the child and outlives it.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                Ok(())
            });
        }
        let mut child = command
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        let said = child.stderr.take().ok_or("no standard error")?;
        let mut server = Self {
            url: String::new(),
            child,
        };
        server.url = address(BufReader::new(said))?;
        Ok(server)
    }
}

/// Where the server listens, by what it says. The rest is read and forgotten, so that it never waits to be heard.
fn address(mut said: impl BufRead + Send + 'static) -> Result<String, Failure> {
    let mut seen = String::new();
    loop {
        let mut line = String::new();
        if said.read_line(&mut line)? == 0 {
            return Err(format!("the server ended before it was ready: {seen}").into());
        }
        if let Some((_, rest)) = line.split_once(" on http://") {
            std::thread::spawn(move || {
                let mut rest = [0; 4096];
                while said.read(&mut rest).is_ok_and(|read| read > 0) {}
            });
            let address = rest.split(' ').next().unwrap_or(rest);
            return Ok(format!("http://{address}"));
        }
        seen.push_str(&line);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: the child has not been waited for, so the id is still its own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        let asked = Instant::now();
        while asked.elapsed() < GRACE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
