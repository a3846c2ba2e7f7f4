use std::ffi::c_int;
use std::sync::Arc;

use cudarc::cusolver::sys;

use super::blas::Matrix;
use super::{Buffer, Cuda, Stream, library};
use crate::device::telemetry::Counters;
use crate::device::{DeviceError, Telemetry};

/// cuSOLVER's dense Cholesky on one stream, in f64.
pub struct Solver {
    handle: sys::cusolverDnHandle_t,
    cuda: Cuda,
    counters: Arc<Counters>,
}

// SAFETY: a handle may move between threads; `&self` calls from two at once are excluded by `!Sync`.
unsafe impl Send for Solver {}

impl Solver {
    pub fn new(stream: &Stream) -> Result<Self, DeviceError> {
        library::cusolver()?;
        let cuda = stream.cuda();
        cuda.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library is there; the stream lives as long as the handle is used.
        unsafe {
            check("cusolverDnCreate", sys::cusolverDnCreate(&mut handle))?;
            stream.count(Telemetry { handles: 1, ..Telemetry::default() });
            let solver = Self { handle, cuda: cuda.clone(), counters: stream.counters().clone() };
            check("cusolverDnSetStream", sys::cusolverDnSetStream(handle, stream.raw().cast()))?;
            Ok(solver)
        }
    }

    /// Doubles of scratch that [`Self::potrf`] needs for order `n`.
    pub fn potrf_scratch(&self, n: usize) -> Result<usize, DeviceError> {
        self.cuda.bind()?;
        let mut len = 0;
        // SAFETY: the matrix is not read by this query.
        check("cusolverDnDpotrf_bufferSize", unsafe {
            let none = std::ptr::null_mut();
            sys::cusolverDnDpotrf_bufferSize(self.handle, LOWER, n as c_int, none, n as c_int, &mut len)
        })?;
        Ok(len as usize)
    }

    /// Cholesky factor of the lower triangle of a column-major matrix of order `n`, in place. `info` gets 0, or one
    /// plus the index of the first pivot that is not positive.
    ///
    /// # Safety
    /// The matrix covers n x n; the scratch has the length that [`Self::potrf_scratch`] gives.
    pub unsafe fn potrf(
        &self,
        n: usize,
        matrix: Matrix,
        scratch: &Buffer<f64>,
        info: &Buffer<i32>,
    ) -> Result<(), DeviceError> {
        self.cuda.bind()?;
        self.counters.add(Telemetry { launches: 1, ..Telemetry::default() });
        // SAFETY: the caller vouches for the matrix; the rest are live buffers.
        check("cusolverDnDpotrf", unsafe {
            sys::cusolverDnDpotrf(
                self.handle,
                LOWER,
                n as c_int,
                matrix.0 as *mut f64,
                matrix.1 as c_int,
                scratch.address() as *mut f64,
                scratch.len() as c_int,
                info.address() as *mut c_int,
            )
        })
    }
}

const LOWER: sys::cublasFillMode_t = sys::cublasFillMode_t::CUBLAS_FILL_MODE_LOWER;

impl Drop for Solver {
    fn drop(&mut self) {
        if self.cuda.bind().is_ok() {
            // SAFETY: created in `new`, destroyed once.
            unsafe { sys::cusolverDnDestroy(self.handle) };
        }
    }
}

fn check(call: &'static str, status: sys::cusolverStatus_t) -> Result<(), DeviceError> {
    if status == sys::cusolverStatus_t::CUSOLVER_STATUS_SUCCESS {
        return Ok(());
    }
    Err(DeviceError::Call { call, code: format!("{status:?}"), text: "reported by cuSOLVER".to_owned() })
}
