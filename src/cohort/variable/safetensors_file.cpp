// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/safetensors_file.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/system_error.h"

namespace cohort::variable {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors files have the bytes of numbers in little-endian order");

constexpr std::size_t kSizeBytes = 8;  // of the size of the header

FileDescriptor opened(const std::string& path) {
  FileDescriptor file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe has no end
  if (file.is_open()) return file;
  const int code = errno;
  internal::throw_error(code_of_file_errno(code), "[variable.saved_values] expected to read file '",
                        path, "', got: ", text_of_errno(code));
}

// Reads all of `buffer`. Throws data_loss if the file ends before.
void read_at(const FileDescriptor& file, std::uint64_t offset, std::span<std::byte> buffer,
             const std::string& path) {
  while (!buffer.empty()) {
    const ssize_t got =
        ::pread(file.get(), buffer.data(), buffer.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    COHORT_CHECK(got >= 0, code_of_errno(errno, ErrorCode::data_loss),
                 "[variable.saved_values] expected to read file '", path,
                 "', got: ", text_of_errno(errno));
    COHORT_CHECK(got > 0, ErrorCode::data_loss, "[variable.saved_values] expected ", buffer.size(),
                 " more bytes of file '", path, "' at ", offset, ", got its end; it was changed");
    offset += static_cast<std::uint64_t>(got);
    buffer = buffer.subspan(static_cast<std::size_t>(got));
  }
}

std::uint64_t size_of(const FileDescriptor& file, const std::string& path) {
  struct stat found {};
  COHORT_CHECK(::fstat(file.get(), &found) == 0, code_of_errno(errno, ErrorCode::data_loss),
               "[variable.saved_values] expected to read file '", path,
               "', got: ", text_of_errno(errno));
  COHORT_CHECK(S_ISREG(found.st_mode), ErrorCode::invalid_argument,
               "[variable.saved_values] expected a file, got '", path, "', which is none");
  return static_cast<std::uint64_t>(found.st_size);
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::string path) : path_(std::move(path)), file_(opened(path_)) {
  const std::uint64_t file_bytes = size_of(file_, path_);
  std::uint64_t header_bytes = 0;
  const auto is_damaged = [&] {
    internal::throw_error(ErrorCode::data_loss, "[variable.saved_values] expected file '", path_,
                          "' to be a safetensors file, got ", file_bytes,
                          " bytes, which is less than its header has");
  };
  if (file_bytes < kSizeBytes) is_damaged();
  read_at(file_, 0, std::as_writable_bytes(std::span(&header_bytes, 1)), path_);
  COHORT_CHECK(header_bytes <= kHeaderBytesMax, ErrorCode::data_loss,
               "[variable.saved_values] expected file '", path_,
               "' to be a safetensors file, got a header of ", header_bytes, " bytes");
  if (header_bytes > file_bytes - kSizeBytes) is_damaged();
  std::string text(header_bytes, '\0');
  read_at(file_, kSizeBytes, std::as_writable_bytes(std::span(text)), path_);
  data_ = kSizeBytes + header_bytes;
  tensors_ = parse_header(text, file_bytes - data_, path_);
}

const SavedTensor& SafetensorsFile::find(const std::string& key) const {
  const auto found = tensors_.find(key);
  if (found != tensors_.end()) return found->second;
  std::string known;
  for (const auto& [name, tensor] : tensors_) known += (known.empty() ? "'" : ", '") + name + "'";
  internal::throw_error(ErrorCode::not_found, "[variable.saved_values] expected one of the keys ",
                        known.empty() ? "(none)" : known, " of file '", path_, "', got '", key,
                        "'");
}

void SafetensorsFile::read(const SavedTensor& tensor, std::uint64_t offset,
                           std::span<std::byte> buffer) const {
  read_at(file_, data_ + tensor.begin + offset, buffer, path_);
}

void write_safetensors(AtomicFile& file, const NewHeader& header,
                       const std::function<at::Tensor(const std::string&)>& value_of) {
  const std::uint64_t size = header.text.size();
  file.write(std::as_bytes(std::span(&size, 1)));
  file.write(std::as_bytes(std::span(header.text)));
  for (const std::string& key : header.order) file.write(bytes_of(value_of(key)));
}

at::Tensor memory_for(const SavedTensor& saved, const std::string& key, const std::string& path) {
  COHORT_CHECK(saved.dtype.has_value(), ErrorCode::unimplemented,
               "[variable.saved_values] expected a dtype that LibTorch has, got ", saved.dtype_name,
               " of '", key, "' in file '", path, "'; save it as another");
  const bool is_bool = saved.dtype == at::kBool;
  return at::empty(saved.sizes, at::TensorOptions(is_bool ? at::kByte : *saved.dtype));
}

at::Tensor tensor_of_memory(const SavedTensor& saved, const at::Tensor& memory) {
  return saved.dtype == at::kBool ? memory.to(at::kBool) : memory;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace cohort::variable
