//! Windows recorded for a measure: all their kernels or only some, replayed without the host in between.

use std::time::Duration;

use cudarc::driver::sys;

use super::{Cuda, CudaError, During, Pending, Window};
use crate::cuda::{
    measure::{Limits, limits},
    watch::{self, Launch},
};

impl Cuda {
    /// What the device gives at most, measured now. Needs an eighth of the memory that is free, at most 4 GiB.
    pub fn limits(&self) -> Result<Limits, CudaError> {
        limits(&self.device, self.settings.kernel_cache.as_deref())
    }

    /// What is enqueued until [`end_recording`](Self::end_recording) is recorded, not computed: of its launches `only` these, if that is said.
    pub fn begin_recording(
        &mut self,
        window: &mut Window<Self>,
        only: Option<Vec<Launch>>,
    ) -> Result<(), CudaError> {
        self.ready().enter(window)?;
        self.bring_ngrams(window)?;
        let ready = self.ready();
        ready
            .queue
            .stream
            .synchronize()
            .during("sending a window")?;
        ready
            .queue
            .stream
            .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .during("recording a window")?;
        watch::begin(only);
        Ok(())
    }

    /// Ends a recording; which launches it holds, in order.
    pub fn end_recording(&mut self) -> Result<Vec<Launch>, CudaError> {
        let launches = watch::end();
        let ready = self.ready();
        ready.now = None;
        ready.pending = Pending::default();
        ready.formed = None;
        ready.queue.overlap = false;
        ready.recorded = ready
            .queue
            .stream
            .end_capture(sys::CUgraphInstantiate_flags(0))
            .during("recording a window")?;
        if let Some(graph) = &ready.recorded {
            graph.upload().during("preparing a recorded window")?;
        }
        Ok(launches)
    }

    /// How long `times` replays of what was recorded last take, one after the other, by the device's clock.
    pub fn replay(&mut self, times: usize) -> Result<Duration, CudaError> {
        let begun = self.device.mark()?;
        if let Some(graph) = &self.ready().recorded {
            for _ in 0..times {
                graph.launch().during("replaying a recorded window")?;
            }
        }
        begun.until(&self.device.mark()?)
    }
}
