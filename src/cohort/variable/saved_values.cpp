// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/saved_values.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "cohort/core/atomic_file.h"
#include "cohort/core/crc32c.h"
#include "cohort/core/error.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/core/log.h"
#include "cohort/core/system_error.h"
#include "cohort/function/trace.h"
#include "cohort/variable/replica_count.h"
#include "cohort/variable/saved/safetensors.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors files have the bytes of numbers in little-endian order");

constexpr std::size_t kSizeBytes = 8;  // of the size of the header

void check_outside_steps(std::string_view call) {
  COHORT_CHECK(variable::ReplicaCount::current() == 1 && function::Trace::current() == nullptr,
               ErrorCode::failed_precondition, "[variable.", call,
               "] expected a call outside of run() and of steps, got one inside; make it between "
               "two runs");
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

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

void write_saved_file(const std::string& path, const std::map<std::string, at::Tensor>& values,
                      const VariableHome::FileTurn& turn) {
  std::map<std::string, TensorSpec> specs;
  for (const auto& [key, value] : values) specs.emplace(key, TensorSpec::of(value));
  std::map<std::string, std::uint32_t> checksums;
  for (const auto& [key, value] : values) checksums.emplace(key, crc32c(bytes_of(value)));
  const variable::NewHeader header = variable::make_header(specs, checksums);
  const std::uint64_t size = header.text.size();
  AtomicFile file(path, "variable.save_values", turn.order);
  file.write(std::as_bytes(std::span(&size, 1)));
  file.write(std::as_bytes(std::span(header.text)));
  for (const std::string& key : header.order) file.write(bytes_of(values.at(key)));
  file.commit(turn.check);
}

}  // namespace

void save_values(const std::string& path, const std::map<std::string, Variable>& variables) {
  check_outside_steps("save_values");
  std::vector<Variable> handles;
  for (const auto& [key, variable] : variables) handles.push_back(variable);
  const std::vector<VariableRecord> state = whole_state(handles, {.has_slots = false});
  std::map<std::string, at::Tensor> values;
  for (const auto& [key, variable] : variables) {
    const at::Tensor& value = state[values.size()].values[0].tensor;
    values.emplace(key, value.detach().cpu().resolve_conj().resolve_neg().contiguous());
  }
  const VariableHome::WriteFile write = [&](const VariableHome::FileTurn& turn) {
    write_saved_file(path, values, turn);
  };
  // All have the same one, but for plain variables of this process.
  std::shared_ptr<const VariableHome> home;
  for (const Variable& each : handles) {
    if (home == nullptr || each.impl()->home()->is_of_one_strategy()) home = each.impl()->home();
  }
  home == nullptr ? write({}) : home->write_file(write);
}

class SavedValues::Impl {
 public:
  explicit Impl(std::string path) : path_(std::move(path)), file_(opened(path_)) {
    const std::uint64_t file_bytes = size_of(file_, path_);
    std::uint64_t header_bytes = 0;
    const auto is_damaged = [&] {
      internal::throw_error(ErrorCode::data_loss, "[variable.saved_values] expected file '", path_,
                            "' to be a safetensors file, got ", file_bytes,
                            " bytes, which is less than its header has");
    };
    if (file_bytes < kSizeBytes) is_damaged();
    read_at(file_, 0, std::as_writable_bytes(std::span(&header_bytes, 1)), path_);
    COHORT_CHECK(header_bytes <= variable::kHeaderBytesMax, ErrorCode::data_loss,
                 "[variable.saved_values] expected file '", path_,
                 "' to be a safetensors file, got a header of ", header_bytes, " bytes");
    if (header_bytes > file_bytes - kSizeBytes) is_damaged();
    std::string text(header_bytes, '\0');
    read_at(file_, kSizeBytes, std::as_writable_bytes(std::span(text)), path_);
    data_ = kSizeBytes + header_bytes;
    tensors_ = variable::parse_header(text, file_bytes - data_, path_);
  }

  const variable::SavedTensors& tensors() const { return tensors_; }
  const std::string& path() const { return path_; }

  at::Tensor value(const std::string& key) const {
    const auto found = tensors_.find(key);
    if (found == tensors_.end()) refuse_key(key);
    const variable::SavedTensor& saved = found->second;
    COHORT_CHECK(saved.dtype.has_value(), ErrorCode::unimplemented,
                 "[variable.saved_values] expected a dtype that LibTorch has, got ",
                 saved.dtype_name, " of '", key, "' in file '", path_, "'; save it as another");
    // Any byte may be in the file, but not in a bool of C++.
    const bool is_bool = saved.dtype == at::kBool;
    const at::Tensor value =
        at::empty(saved.sizes, at::TensorOptions(is_bool ? at::kByte : *saved.dtype));
    read_at(file_, data_ + saved.begin, {static_cast<std::byte*>(value.data_ptr()), value.nbytes()},
            path_);
    COHORT_CHECK(!saved.checksum || *saved.checksum == crc32c(bytes_of(value)),
                 ErrorCode::data_loss, "[variable.saved_values] expected the bytes of '", key,
                 "' in file '", path_, "' that were saved, got others; the file is damaged");
    return is_bool ? value.to(at::kBool) : value;
  }

 private:
  [[noreturn]] void refuse_key(const std::string& key) const {
    std::string known;
    for (const auto& [name, tensor] : tensors_) known += (known.empty() ? "'" : ", '") + name + "'";
    internal::throw_error(ErrorCode::not_found, "[variable.saved_values] expected one of the keys ",
                          known.empty() ? "(none)" : known, " of file '", path_, "', got '", key,
                          "'");
  }

  const std::string path_;
  const FileDescriptor file_;
  std::uint64_t data_ = 0;  // where the tensors' bytes begin
  variable::SavedTensors tensors_;
};

SavedValues::SavedValues(const std::string& path) : impl_(std::make_shared<const Impl>(path)) {}

std::vector<std::string> SavedValues::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, tensor] : impl_->tensors()) keys.push_back(key);
  return keys;
}

at::Tensor SavedValues::value(const std::string& key) const { return impl_->value(key); }

void SavedValues::restore(const std::string& key, const Variable& variable) const {
  restore(std::map<std::string, Variable>{std::pair(key, variable)});
}

void SavedValues::restore(const std::map<std::string, Variable>& variables) const {
  check_outside_steps("restore_values");
  std::vector<VariableWrite> writes;
  std::vector<Variable> newer;
  for (const auto& [key, variable] : variables) {
    if (variable.impl()->home()->keeps_newer_values()) {
      newer.push_back(variable);
    } else {
      writes.push_back({variable, internal::Effect::Kind::assign, value(key)});
    }
  }
  if (!newer.empty()) {
    log_warn("[variable.restore_values] kept the values of ", names_of(newer),
             ", which other workers have handed over, in place of the older ones of file '",
             impl_->path(), "'");
  }
  try {
    write_values(writes);
  } catch (const Error&) {
    throw current_error().during("restoring values of file '" + impl_->path() + "'");
  }
}

void restore_values(const std::string& path, const std::map<std::string, Variable>& variables) {
  SavedValues(path).restore(variables);
}

}  // namespace cohort
