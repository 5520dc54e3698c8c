//! The engine's one inbox: a closed list of events, and the proof that it never overflows.
//!
//! Knows what may wake the engine and nothing of what the engine does about it. Its bound is derived, not chosen: admissions
//! are counted before they are sent, wake-ups are merged into one, and there is one stopper.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use tokio::sync::watch;
use tracing::Span;

use super::{drafts::Drafts, outbox::Outbox, sequence::Sequence};
use crate::sampler::Sampler;

/// Everything that may reach the engine thread from outside.
pub(super) enum Event {
    /// A request that was checked and counted.
    Admit(Box<Admission>),
    /// A reader took something or went away: credits and cancels are to be looked at again.
    Wake,
    /// End now.
    Shutdown,
}

/// A request on its way into the engine, with everything that could be prepared on the client's thread.
pub(super) struct Admission {
    /// Numbers requests in the order of their submission.
    pub(super) id: u64,
    /// The tokens and how far they are.
    pub(super) sequence: Sequence,
    /// How tokens are chosen.
    pub(super) sampler: Sampler,
    /// What its next tokens are guessed from, if they are.
    pub(super) drafts: Option<Drafts>,
    /// Log-probabilities wanted per token.
    pub(super) logprobs: Option<usize>,
    /// Where tokens go.
    pub(super) outbox: Outbox,
    /// When it was submitted.
    pub(super) submitted: Instant,
    /// What the answer may take.
    pub(super) deadline: Option<Duration>,
    /// When it will have taken that; known once the engine has taken note of it.
    pub(super) due: Option<Instant>,
    /// Tells the reader its place in the queue, counted from 1; 0 when it is not waiting.
    pub(super) place: watch::Sender<usize>,
    /// The request's trace.
    pub(super) span: Span,
}

/// The sending side of the inbox. Sending never waits.
#[derive(Clone, Debug)]
pub(super) struct Inbox {
    events: mpsc::SyncSender<Event>,
    woken: Arc<AtomicBool>,
}

/// The engine's side of the inbox.
#[derive(Debug)]
pub(super) struct Events {
    events: mpsc::Receiver<Event>,
    woken: Arc<AtomicBool>,
}

/// The inbox has no reader any more.
#[derive(Debug)]
pub(super) struct Closed;

/// An inbox for at most `requests` admissions that the engine has not seen the end of.
pub(super) fn inbox(requests: usize) -> (Inbox, Events) {
    // One more place for the merged wake-up and one for the shutdown: a send finds room, always.
    let (sender, receiver) = mpsc::sync_channel(requests + 2);
    let woken = Arc::new(AtomicBool::new(false));
    (
        Inbox {
            events: sender,
            woken: woken.clone(),
        },
        Events {
            events: receiver,
            woken,
        },
    )
}

impl Inbox {
    /// Hands over a counted request.
    pub(super) fn admit(&self, admission: Box<Admission>) -> Result<(), Closed> {
        self.events
            .try_send(Event::Admit(admission))
            .map_err(|_| Closed)
    }

    /// Tells the engine to look at its outboxes. Merged with a wake-up that it has not taken yet.
    pub(super) fn wake(&self) {
        // Acquire/release both ways: whoever finds the flag set has published its change to the engine's next look.
        if !self.woken.swap(true, Ordering::AcqRel) {
            let _ = self.events.try_send(Event::Wake); // an engine that has ended needs no waking
        }
    }

    /// Tells the engine to end. Sent once, by its stopper.
    pub(super) fn shut_down(&self) {
        let _ = self.events.try_send(Event::Shutdown);
    }
}

impl Events {
    /// The next event, if there is one.
    pub(super) fn next(&self) -> Option<Event> {
        match self.events.try_recv() {
            Ok(event) => Some(self.taken(event)),
            Err(mpsc::TryRecvError::Empty) => None,
            Err(mpsc::TryRecvError::Disconnected) => Some(Event::Shutdown),
        }
    }

    /// Sleeps until there is an event, no longer than `most`. Nobody left who could send one counts as a shutdown.
    pub(super) fn wait(&self, most: Option<Duration>) -> Option<Event> {
        use mpsc::RecvTimeoutError::{Disconnected, Timeout};
        let received = match most {
            Some(most) => self.events.recv_timeout(most),
            None => self.events.recv().map_err(|_| Disconnected),
        };
        match received {
            Ok(event) => Some(self.taken(event)),
            Err(Timeout) => None,
            Err(Disconnected) => Some(Event::Shutdown),
        }
    }

    fn taken(&self, event: Event) -> Event {
        if matches!(event, Event::Wake) {
            self.woken.swap(false, Ordering::AcqRel);
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wake-ups and a shutdown in any number of sends; what the engine takes.
    fn check(wakes_before: usize, wakes_after: usize, expected: &[&str]) {
        let (inbox, events) = inbox(0);
        let mut taken = Vec::new();
        let mut take = || {
            while let Some(event) = events.next() {
                taken.push(match event {
                    Event::Admit(_) => "admit",
                    Event::Wake => "wake",
                    Event::Shutdown => return taken.push("shutdown"),
                });
            }
        };
        (0..wakes_before).for_each(|_| inbox.wake());
        take();
        (0..wakes_after).for_each(|_| inbox.wake());
        inbox.shut_down();
        take();
        assert_eq!(
            taken, expected,
            "{wakes_before} then {wakes_after} wake-ups"
        );
    }

    #[test]
    fn wake_ups_merge_and_never_crowd_out_a_shutdown() {
        check(0, 0, &["shutdown"]);
        check(1, 0, &["wake", "shutdown"]);
        check(9, 0, &["wake", "shutdown"]);
        check(9, 9, &["wake", "wake", "shutdown"]);
    }

    #[test]
    fn nobody_left_is_a_shutdown() {
        let (inbox, events) = inbox(1);
        drop(inbox);
        assert!(matches!(events.wait(None), Some(Event::Shutdown)));
    }
}
