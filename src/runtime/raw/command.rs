//! Command buffers.

use std::sync::Arc;

use ash::vk;

use super::{Buffer, Descriptors, Device, Named, Pipeline, Queries};
use crate::error::Result;
use crate::runtime::hazard::{Barrier, Stages};

/// A command buffer with a pool of its own, so that threads record independently; or a caller's.
///
/// Commands refer to buffers, pipelines and queries without holding them: whoever submits keeps those alive until the
/// device is done.
pub(in crate::runtime) struct Commands {
    /// Null when the buffer is a caller's.
    pool: vk::CommandPool,
    buffer: vk::CommandBuffer,
    /// The barriers recorded.
    barriers: Vec<Barrier>,
    device: Arc<Device>,
}

impl Commands {
    pub(in crate::runtime) fn new(device: &Arc<Device>) -> Result<Self> {
        let info = vk::CommandPoolCreateInfo::default()
            .flags(vk::CommandPoolCreateFlags::TRANSIENT)
            .queue_family_index(device.queue_family.index);
        // SAFETY: the device is alive and has a queue of the family.
        let pool = unsafe { device.handle.create_command_pool(&info, None) }
            .named("vkCreateCommandPool")?;
        let mut commands = Self {
            pool,
            buffer: vk::CommandBuffer::null(),
            barriers: Vec::new(),
            device: device.clone(),
        };
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: the pool is new.
        let buffers = unsafe { device.handle.allocate_command_buffers(&info) }
            .named("vkAllocateCommandBuffers")?;
        commands.buffer = buffers[0];
        Ok(commands)
    }

    /// A caller's command buffer, which is recording and stays the caller's to end and to submit.
    pub(super) fn of_caller(device: &Arc<Device>, buffer: vk::CommandBuffer) -> Self {
        let (pool, device) = (vk::CommandPool::null(), device.clone());
        Self { pool, buffer, barriers: Vec::new(), device }
    }

    pub(super) fn handle(&self) -> vk::CommandBuffer {
        self.buffer
    }

    /// Whether the buffer is a caller's.
    pub(in crate::runtime) fn is_callers(&self) -> bool {
        self.pool == vk::CommandPool::null()
    }

    /// Starts over, behind everything submitted to its queue before. The device is done with earlier commands of this buffer.
    /// A caller's goes on, behind whatever was recorded and submitted before.
    pub(in crate::runtime) fn begin(&mut self, descriptors: &Descriptors) -> Result<()> {
        self.barriers.clear();
        if self.is_callers() {
            self.bind_descriptors(descriptors);
            self.barrier(Barrier { before: Stages::ANY, after: Stages::ALL });
            return Ok(());
        }
        let device = &self.device.handle;
        let info = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the buffer is not in flight: only buffers that the in-flight list gave back are begun again.
        unsafe {
            device
                .reset_command_pool(self.pool, vk::CommandPoolResetFlags::empty())
                .named("vkResetCommandPool")?;
            device.begin_command_buffer(self.buffer, &info).named("vkBeginCommandBuffer")?;
        }
        self.bind_descriptors(descriptors);
        self.barrier(Barrier { before: Stages::ALL, after: Stages::ALL });
        Ok(())
    }

    pub(in crate::runtime) fn bind_descriptors(&mut self, descriptors: &Descriptors) {
        // SAFETY: the buffer is recording; the set and the layout are the device's.
        unsafe {
            self.device.handle.cmd_bind_descriptor_sets(
                self.buffer,
                vk::PipelineBindPoint::COMPUTE,
                descriptors.pipeline_layout(),
                0,
                &[descriptors.set()],
                &[],
            );
        }
    }

    /// Ends the recording; makes results of copies visible to the host. A caller's stays open, and all results are
    /// visible to whatever comes.
    pub(in crate::runtime) fn end(&mut self) -> Result<()> {
        if self.is_callers() {
            self.barrier(Barrier { before: Stages::ALL, after: Stages::ANY });
            return Ok(());
        }
        self.barrier(Barrier { before: Stages::TRANSFER, after: Stages::HOST });
        // SAFETY: the buffer is recording.
        unsafe { self.device.handle.end_command_buffer(self.buffer) }.named("vkEndCommandBuffer")
    }

    pub(in crate::runtime) fn barrier(&mut self, barrier: Barrier) {
        let (before, after) = (scope(barrier.before), scope(barrier.after));
        let barriers = [vk::MemoryBarrier2::default()
            .src_stage_mask(before.0)
            .src_access_mask(before.1)
            .dst_stage_mask(after.0)
            .dst_access_mask(after.1)];
        let info = vk::DependencyInfo::default().memory_barriers(&barriers);
        // SAFETY: the buffer is recording.
        unsafe { self.device.handle.cmd_pipeline_barrier2(self.buffer, &info) };
        self.barriers.push(barrier);
    }

    /// The barriers recorded so far.
    pub(in crate::runtime) fn barriers(&self) -> &[Barrier] {
        &self.barriers
    }

    pub(in crate::runtime) fn bind(&mut self, pipeline: &Pipeline) {
        // SAFETY: the buffer is recording and the pipeline is this device's.
        unsafe {
            self.device.handle.cmd_bind_pipeline(
                self.buffer,
                vk::PipelineBindPoint::COMPUTE,
                pipeline.handle(),
            );
        }
    }

    /// Runs the bound pipeline over `groups` workgroups with these push constants, at most 128 bytes.
    pub(in crate::runtime) fn dispatch(
        &mut self,
        descriptors: &Descriptors,
        push: &[u8],
        groups: [u32; 2],
    ) {
        let device = &self.device.handle;
        // SAFETY: the buffer is recording, and the recorder has bound a pipeline and held the sizes against the limits.
        unsafe {
            if !push.is_empty() {
                device.cmd_push_constants(
                    self.buffer,
                    descriptors.pipeline_layout(),
                    vk::ShaderStageFlags::COMPUTE,
                    0,
                    push,
                );
            }
            device.cmd_dispatch(self.buffer, groups[0], groups[1], 1);
        }
    }

    /// Fills bytes with a repeated word; offset and length are multiples of four.
    pub(in crate::runtime) fn fill(&mut self, buffer: &Buffer, offset: u64, bytes: u64, word: u32) {
        // SAFETY: the buffer is recording and the range is within the target.
        unsafe {
            self.device.handle.cmd_fill_buffer(self.buffer, buffer.handle(), offset, bytes, word);
        }
    }

    /// Copies between buffers: from where, to where and how many bytes each time.
    pub(in crate::runtime) fn copy(
        &mut self,
        from: &Buffer,
        to: &Buffer,
        regions: impl Iterator<Item = [u64; 3]>,
    ) {
        let region = |[src_offset, dst_offset, size]: [u64; 3]| vk::BufferCopy {
            src_offset,
            dst_offset,
            size,
        };
        let regions: Vec<_> = regions.map(region).collect();
        // SAFETY: the buffer is recording and the ranges are within both buffers.
        unsafe {
            self.device.handle.cmd_copy_buffer(self.buffer, from.handle(), to.handle(), &regions);
        }
    }

    /// Makes all queries of a pool ready for use.
    pub(in crate::runtime) fn reset(&mut self, queries: &Queries) {
        // SAFETY: the buffer is recording and no command in flight uses the pool.
        unsafe {
            self.device.handle.cmd_reset_query_pool(
                self.buffer,
                queries.handle(),
                0,
                Queries::CAPACITY,
            );
        }
    }

    /// Writes the time at which everything recorded so far is done.
    pub(in crate::runtime) fn timestamp(&mut self, queries: &Queries, index: u32) {
        // SAFETY: the buffer is recording, the query was reset in it and is written once.
        unsafe {
            self.device.handle.cmd_write_timestamp2(
                self.buffer,
                vk::PipelineStageFlags2::ALL_COMMANDS,
                queries.handle(),
                index,
            );
        }
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        // SAFETY: commands in flight are kept alive until the device is done with them.
        unsafe { self.device.handle.destroy_command_pool(self.pool, None) };
    }
}

/// The pipeline stages and accesses of a set of stages.
fn scope(stages: Stages) -> (vk::PipelineStageFlags2, vk::AccessFlags2) {
    let mut stage = vk::PipelineStageFlags2::NONE;
    let mut access = vk::AccessFlags2::NONE;
    if stages.contains(Stages::COMPUTE) {
        stage |= vk::PipelineStageFlags2::COMPUTE_SHADER;
        access |= vk::AccessFlags2::SHADER_STORAGE_READ | vk::AccessFlags2::SHADER_STORAGE_WRITE;
    }
    if stages.contains(Stages::TRANSFER) {
        stage |= vk::PipelineStageFlags2::ALL_TRANSFER;
        access |= vk::AccessFlags2::TRANSFER_READ | vk::AccessFlags2::TRANSFER_WRITE;
    }
    if stages.contains(Stages::HOST) {
        stage |= vk::PipelineStageFlags2::HOST;
        access |= vk::AccessFlags2::HOST_READ;
    }
    if stages.contains(Stages::ANY) {
        // The host is not among all commands.
        stage |= vk::PipelineStageFlags2::ALL_COMMANDS | vk::PipelineStageFlags2::HOST;
        access |= vk::AccessFlags2::MEMORY_READ | vk::AccessFlags2::MEMORY_WRITE;
    }
    (stage, access)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_hold_all_that_commands_do() {
        let (stage, access) = scope(Stages::ALL);
        assert_eq!(
            stage,
            vk::PipelineStageFlags2::COMPUTE_SHADER | vk::PipelineStageFlags2::ALL_TRANSFER
        );
        let [compute, transfer] = [Stages::COMPUTE, Stages::TRANSFER].map(|stages| scope(stages).1);
        assert_eq!(access, compute | transfer);
        assert!(compute.contains(vk::AccessFlags2::SHADER_STORAGE_READ));
        assert!(compute.contains(vk::AccessFlags2::SHADER_STORAGE_WRITE));
        assert!(transfer.contains(vk::AccessFlags2::TRANSFER_READ));
        assert!(transfer.contains(vk::AccessFlags2::TRANSFER_WRITE));
        let host = (vk::PipelineStageFlags2::HOST, vk::AccessFlags2::HOST_READ);
        assert_eq!(scope(Stages::HOST), host);
        let any = vk::PipelineStageFlags2::ALL_COMMANDS | vk::PipelineStageFlags2::HOST;
        let access = vk::AccessFlags2::MEMORY_READ | vk::AccessFlags2::MEMORY_WRITE;
        assert_eq!(scope(Stages::ANY), (any, access));
    }
}
