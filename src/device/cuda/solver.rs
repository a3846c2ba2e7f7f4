use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cudarc::cusolver::sys;

use super::blas::Matrix;
use super::{Buffer, Cuda, Stream, library};
use crate::device::telemetry::Counters;
use crate::device::{DeviceError, Telemetry};

/// cuSOLVER on one stream: dense Cholesky in f64, symmetric eigenpairs in both precisions.
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
    /// The matrix covers n x n; the scratch (address and numbers) has the length that [`Self::potrf_scratch`] gives, and
    /// `info` is the address of an `int`.
    pub unsafe fn potrf(
        &self,
        n: usize,
        matrix: Matrix,
        (scratch, len): (u64, usize),
        info: u64,
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
                scratch as *mut f64,
                len as c_int,
                info as *mut c_int,
            )
        })
    }
}

/// Symmetric matrices whose eigenpairs are wanted: column-major, of one order, one after another without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symmetric {
    pub precision: Precision,
    pub order: usize,
    /// How many; several go through a solver that works on all of them at once.
    pub count: usize,
    /// Address of the first matrix.
    pub matrices: u64,
    /// Address of the eigenvalues: `order` for each matrix.
    pub values: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    F32,
    F64,
}

/// Bytes that [`Solver::eigen`] works in.
pub struct EigenScratch {
    device: Buffer<u8>,
    host: Vec<u8>,
    /// For each matrix 0, or how many values did not converge.
    pub info: Buffer<i32>,
}

impl Solver {
    /// Scratch for eigenpairs of such matrices.
    pub fn eigen_scratch(&self, problem: Symmetric) -> Result<EigenScratch, DeviceError> {
        self.cuda.bind()?;
        let Symmetric { order, count, matrices, values, .. } = problem;
        let (kind, n, none) = (kind(problem.precision), order as i64, std::ptr::null_mut());
        let (mut device, mut host) = (0, 0);
        let (a, w) = (matrices as *const c_void, values as *const c_void);
        // SAFETY: a query; the matrices are not read.
        check("cusolverDnXsyev_bufferSize", unsafe {
            if count == 1 {
                sys::cusolverDnXsyevd_bufferSize(
                    self.handle,
                    none,
                    VECTORS,
                    LOWER,
                    n,
                    kind,
                    a,
                    n,
                    kind,
                    w,
                    kind,
                    &mut device,
                    &mut host,
                )
            } else {
                sys::cusolverDnXsyevBatched_bufferSize(
                    self.handle,
                    none,
                    VECTORS,
                    LOWER,
                    n,
                    kind,
                    a,
                    n,
                    kind,
                    w,
                    kind,
                    &mut device,
                    &mut host,
                    count as i64,
                )
            }
        })?;
        let info = Buffer::new(&self.cuda, count)?;
        Ok(EigenScratch { device: Buffer::new(&self.cuda, device)?, host: vec![0; host], info })
    }

    /// Eigenvalues in ascending order and 2-norm 1 eigenvectors, which take the matrices' places, column by column;
    /// the lower triangles are read.
    ///
    /// # Safety
    /// Matrices and values cover what the problem says; the scratch was made for it.
    pub unsafe fn eigen(&self, problem: Symmetric, scratch: &mut EigenScratch) -> Result<(), DeviceError> {
        self.cuda.bind()?;
        self.counters.add(Telemetry { launches: 1, ..Telemetry::default() });
        let Symmetric { order, count, matrices, values, .. } = problem;
        let (kind, n, none) = (kind(problem.precision), order as i64, std::ptr::null_mut());
        let (a, w) = (matrices as *mut c_void, values as *mut c_void);
        let (device, host) = (scratch.device.address() as *mut c_void, scratch.host.as_mut_ptr().cast());
        let (device_len, host_len) = (scratch.device.len(), scratch.host.len());
        let info = scratch.info.address() as *mut c_int;
        // SAFETY: the caller vouches for the matrices; the rest are live buffers.
        check("cusolverDnXsyev", unsafe {
            if count == 1 {
                sys::cusolverDnXsyevd(
                    self.handle,
                    none,
                    VECTORS,
                    LOWER,
                    n,
                    kind,
                    a,
                    n,
                    kind,
                    w,
                    kind,
                    device,
                    device_len,
                    host,
                    host_len,
                    info,
                )
            } else {
                sys::cusolverDnXsyevBatched(
                    self.handle,
                    none,
                    VECTORS,
                    LOWER,
                    n,
                    kind,
                    a,
                    n,
                    kind,
                    w,
                    kind,
                    device,
                    device_len,
                    host,
                    host_len,
                    info,
                    count as i64,
                )
            }
        })
    }
}

const VECTORS: sys::cusolverEigMode_t = sys::cusolverEigMode_t::CUSOLVER_EIG_MODE_VECTOR;

fn kind(precision: Precision) -> sys::cudaDataType {
    match precision {
        Precision::F32 => sys::cudaDataType::CUDA_R_32F,
        Precision::F64 => sys::cudaDataType::CUDA_R_64F,
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
