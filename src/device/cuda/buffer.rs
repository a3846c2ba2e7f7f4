use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use cudarc::driver::sys;

use super::stream::outside_captures;
use super::{Cuda, Stream, check};
use crate::device::{DeviceError, Telemetry};

/// `len` elements in device memory; freed when dropped. Fresh memory holds no defined values.
pub struct Buffer<T> {
    pointer: sys::CUdeviceptr,
    len: usize,
    cuda: Cuda,
    element: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// Errors: the figure and what is free when the card has too little memory.
    pub fn new(cuda: &Cuda, len: usize) -> Result<Self, DeviceError> {
        cuda.bind()?;
        let bytes = (len * size_of::<T>()).max(1);
        let mut pointer = 0;
        // SAFETY: a pointer to a live local.
        let result = outside_captures(|| unsafe { sys::cuMemAlloc_v2(&mut pointer, bytes) });
        if result == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(DeviceError::memory("a buffer", bytes as u64, cuda.free_memory()?));
        }
        check("cuMemAlloc", result)?;
        Ok(Self { pointer, len, cuda: cuda.clone(), element: PhantomData })
    }

    /// Uploads `values` and waits.
    pub fn from_slice(stream: &Stream, values: &[T]) -> Result<Self, DeviceError> {
        let buffer = Self::new(stream.cuda(), values.len())?;
        buffer.upload(stream, values)?;
        Ok(buffer)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The address on the device, for kernels and libraries.
    pub fn address(&self) -> u64 {
        self.pointer
    }

    /// The address of an element.
    pub fn at(&self, index: usize) -> u64 {
        debug_assert!(index <= self.len);
        self.pointer + (index * size_of::<T>()) as u64
    }

    /// Copies `values` to the start of the buffer and waits until that is done.
    ///
    /// # Errors
    /// More values than the buffer holds; whatever the device says.
    pub fn upload(&self, stream: &Stream, values: &[T]) -> Result<(), DeviceError> {
        // SAFETY: the copy is waited for, whatever became of it, before the borrow ends.
        let queued = unsafe { self.queue_upload(stream, values) };
        let waited = stream.wait();
        queued.and(waited)
    }

    /// Queues a copy from the host. From memory that is not pinned it is done when this returns.
    ///
    /// # Safety
    /// `values` stays alive and unchanged until the stream was waited for, also after an error.
    pub unsafe fn queue_upload(&self, stream: &Stream, values: &[T]) -> Result<(), DeviceError> {
        // SAFETY: the caller's promise, handed on.
        unsafe { self.queue_upload_at(stream, 0, values) }
    }

    /// The same, to the elements from `at` on.
    ///
    /// # Safety
    /// As for [`Self::queue_upload`].
    pub unsafe fn queue_upload_at(
        &self,
        stream: &Stream,
        at: usize,
        values: &[T],
    ) -> Result<(), DeviceError> {
        self.fits(at + values.len())?;
        stream.cuda().bind()?;
        let bytes = size_of_val(values);
        stream.count(Telemetry { bytes_up: bytes as u64, ..Telemetry::default() });
        // SAFETY: `values` covers these bytes and so does the buffer; the caller keeps `values`.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(self.at(at), values.as_ptr().cast(), bytes, stream.raw())
        })
    }

    /// Copies the start of the buffer to `values` and waits until that is done.
    ///
    /// # Errors
    /// More values than the buffer holds; whatever the device says.
    pub fn download(&self, stream: &Stream, values: &mut [T]) -> Result<(), DeviceError> {
        self.download_at(stream, 0, values)
    }

    /// The same, from the elements from `at` on.
    ///
    /// # Errors
    /// As for [`Self::download`].
    pub fn download_at(&self, stream: &Stream, at: usize, values: &mut [T]) -> Result<(), DeviceError> {
        self.fits(at + values.len())?;
        let target = values.as_mut_ptr().cast();
        // SAFETY: `values` covers these bytes, and the copy is waited for before the borrow ends.
        let queued = unsafe { self.queue_copy_down(stream, at, target, values.len()) };
        let waited = stream.wait();
        queued.and(waited)
    }

    /// Queues a copy of the first `len` elements to `target[at..at + len]`.
    ///
    /// # Safety
    /// Nobody reads, writes or drops these elements of `target` until the stream was waited for, also after an error.
    ///
    /// # Errors
    /// More than the buffer or the target holds; whatever the device says.
    pub unsafe fn queue_download(
        &self,
        stream: &Stream,
        target: &Pinned<T>,
        at: usize,
        len: usize,
    ) -> Result<(), DeviceError> {
        self.fits(len)?;
        let room = target.len.saturating_sub(at);
        if len > room {
            return Err(DeviceError::Length { what: "a copy to pinned memory", got: len, expected: room });
        }
        // SAFETY: both cover these elements; the caller leaves the pinned ones alone.
        unsafe { self.queue_copy_down(stream, 0, target.pointer.add(at).cast(), len) }
    }

    /// Queues a copy of the first `len` elements to an address on the device or in pinned memory.
    ///
    /// # Safety
    /// The address has room for them until the stream was waited for.
    ///
    /// # Errors
    /// More than the buffer holds; whatever the device says.
    pub unsafe fn queue_copy_to(&self, stream: &Stream, address: u64, len: usize) -> Result<(), DeviceError> {
        self.fits(len)?;
        stream.cuda().bind()?;
        // SAFETY: the buffer covers these bytes; the caller vouches for the address.
        check("cuMemcpyAsync", unsafe {
            sys::cuMemcpyAsync(address, self.pointer, len * size_of::<T>(), stream.raw())
        })
    }

    /// # Safety
    /// `target` has room for `len` elements until the stream was waited for.
    unsafe fn queue_copy_down(
        &self,
        stream: &Stream,
        at: usize,
        target: *mut std::ffi::c_void,
        len: usize,
    ) -> Result<(), DeviceError> {
        stream.cuda().bind()?;
        let bytes = len * size_of::<T>();
        stream.count(Telemetry { bytes_down: bytes as u64, ..Telemetry::default() });
        // SAFETY: the buffer covers these bytes; the caller vouches for the target.
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(target, self.at(at), bytes, stream.raw())
        })
    }

    /// The first `len` elements, downloaded and waited for.
    pub fn to_vec(&self, stream: &Stream, len: usize) -> Result<Vec<T>, DeviceError> {
        let mut values = vec![T::zeroed(); len];
        self.download(stream, &mut values)?;
        Ok(values)
    }

    /// Queues a copy of all of `from` to the start of this buffer.
    pub fn copy_from(&self, stream: &Stream, from: &Buffer<T>) -> Result<(), DeviceError> {
        self.fits(from.len)?;
        stream.cuda().bind()?;
        // SAFETY: both buffers cover these bytes.
        check("cuMemcpyDtoDAsync", unsafe {
            sys::cuMemcpyDtoDAsync_v2(self.pointer, from.pointer, from.bytes(), stream.raw())
        })
    }

    /// Queues setting every byte.
    pub fn fill_bytes(&self, stream: &Stream, byte: u8) -> Result<(), DeviceError> {
        stream.cuda().bind()?;
        // SAFETY: the buffer covers these bytes.
        check("cuMemsetD8Async", unsafe {
            sys::cuMemsetD8Async(self.pointer, byte, self.bytes(), stream.raw())
        })
    }

    fn fits(&self, len: usize) -> Result<(), DeviceError> {
        if len <= self.len {
            Ok(())
        } else {
            Err(DeviceError::Length { what: "a copy to or from the device", got: len, expected: self.len })
        }
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if self.cuda.bind().is_ok() {
            // SAFETY: allocated in `new`, freed once. A failure here has nobody left to tell.
            outside_captures(|| unsafe { sys::cuMemFree_v2(self.pointer) });
        }
    }
}

/// Host memory that the device reaches without a copy through the driver. Starts as zeros.
pub struct Pinned<T> {
    pointer: *mut T,
    len: usize,
    cuda: Cuda,
}

// SAFETY: plain memory, owned.
unsafe impl<T: Pod + Send> Send for Pinned<T> {}
// SAFETY: shared references only read.
unsafe impl<T: Pod + Sync> Sync for Pinned<T> {}

impl<T: Pod> Pinned<T> {
    pub fn new(cuda: &Cuda, len: usize) -> Result<Self, DeviceError> {
        cuda.bind()?;
        let bytes = (len * size_of::<T>()).max(1);
        let mut pointer = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: a pointer to a live local; the memory is then zeroed, so that it holds valid `T`.
        unsafe {
            let allocated = outside_captures(|| sys::cuMemHostAlloc(&mut pointer, bytes, flags));
            check("cuMemHostAlloc", allocated)?;
            pointer.cast::<u8>().write_bytes(0, bytes);
        }
        Ok(Self { pointer: pointer.cast(), len, cuda: cuda.clone() })
    }

    /// The address under which kernels reach it: with unified addressing, the host's own.
    pub fn address(&self) -> u64 {
        self.pointer as u64
    }
}

impl<T> Deref for Pinned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised elements, owned.
        unsafe { std::slice::from_raw_parts(self.pointer, self.len) }
    }
}

impl<T> DerefMut for Pinned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `len` initialised elements, owned.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.len) }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        if self.cuda.bind().is_ok() {
            // SAFETY: allocated in `new`, freed once.
            outside_captures(|| unsafe { sys::cuMemFreeHost(self.pointer.cast()) });
        }
    }
}

/// A slice of the caller's that is pinned while this lives, so that copies from it run at full speed.
pub struct Registered<'a> {
    pointer: *mut std::ffi::c_void,
    cuda: Cuda,
    slice: PhantomData<&'a [u8]>,
}

impl<'a> Registered<'a> {
    pub fn new<T: Pod>(cuda: &Cuda, values: &'a [T]) -> Result<Self, DeviceError> {
        cuda.bind()?;
        let pointer = values.as_ptr().cast_mut().cast();
        // SAFETY: the slice outlives the registration; copies from it only read.
        check(
            "cuMemHostRegister",
            outside_captures(|| unsafe { sys::cuMemHostRegister_v2(pointer, size_of_val(values), 0) }),
        )?;
        Ok(Self { pointer, cuda: cuda.clone(), slice: PhantomData })
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        if self.cuda.bind().is_ok() {
            // SAFETY: registered in `new`, given back once.
            outside_captures(|| unsafe { sys::cuMemHostUnregister(self.pointer) });
        }
    }
}
