// SPDX-License-Identifier: Apache-2.0
// A safetensors file that is written while its tensors become known.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cohort/checkpoint_files/manifest.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/core/write_behind.h"

namespace cohort::checkpoint {

// A reader checks a part as a whole, so it needs memory for one.
inline constexpr std::uint64_t kPartBytesMax = std::uint64_t{16} << 20;

// All tensors of a file have one dtype, so that each is aligned and there are no gaps between them.
// The header comes first in the file and is written last: `header_room` bytes are kept for it, and
// if that is too few, the file is copied. Thread-compatible.
class TensorFile {
 public:
  // Throws the errors of the file system, naming the file.
  TensorFile(std::string path, std::uint64_t header_room);

  // A tensor of static sizes, whose rows are to be written in any order. Returns its number.
  std::size_t add(std::string name, const TensorSpec& spec);
  // The only tensor of the file, which has as many rows as are written.
  std::size_t add_growing(std::string name, TensorSpec spec);
  // Rows of a tensor, of its dtype, contiguous and on the CPU.
  void write(std::size_t tensor, std::int64_t first_row, const at::Tensor& rows);
  // The next rows of the growing tensor, as one part.
  void append(const at::Tensor& rows) {
    write(0, tensors_.at(0).written.spec.sizes->front(), rows);
  }
  // Writes the header, and waits until the disk has all.
  void finish();

  struct Written {
    std::string name;
    TensorSpec spec;
    std::vector<PartEntry> parts;  // in the order of their rows
  };
  // After finish().
  std::vector<Written> take_written();

 private:
  struct Placed {
    Written written;
    std::uint64_t begin = 0;
    bool is_growing = false;
  };
  void write_bytes(std::uint64_t offset, std::span<const std::byte> bytes);
  void move_data(std::uint64_t room);
  [[noreturn]] void fail(int code) const;

  const std::string path_;
  FileDescriptor file_;
  WriteBehind behind_;
  std::uint64_t room_;     // of the text of the header
  std::uint64_t end_ = 0;  // of the data
  std::vector<Placed> tensors_;
};

}  // namespace cohort::checkpoint
