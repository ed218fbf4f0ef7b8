// CRC-32C (Castagnoli): the checksum of checkpoint tensors and of TensorBoard records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace moetrain {

/// Extends `crc` (0 to start) by `size` bytes. crc32c(0, "123456789", 9) == 0xe3069283.
/// Uses the SSE4.2 instruction when the processor has it, chosen at run time.
uint32_t crc32c(uint32_t crc, const void* data, size_t size);

/// The portable table version, for tests and processors without the instruction.
uint32_t crc32c_portable(uint32_t crc, const void* data, size_t size);

/// Eight lower-case hexadecimal digits.
std::string crc_text(uint32_t crc);

}  // namespace moetrain
