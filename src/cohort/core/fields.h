// SPDX-License-Identifier: Apache-2.0
// Writes structs as bytes and reads them back. One function a struct names its fields in order, for
// both directions:
//
//   template <class Codec>
//   void fields(Codec& codec, Slice& slice) {
//     codec(slice.variable, slice.server, slice.first_row, slice.rows);
//   }
//
// The type of a field says how it is written (docs/formats/frame.md, "Fields").
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/error_bytes.h"
#include "cohort/core/file_fingerprint.h"
#include "cohort/core/tensor_spec.h"

namespace cohort {

// A number that is usually large, such as an incarnation: 8 bytes.
struct Fixed {
  std::uint64_t& value;
};
// Such numbers: how many, and 8 bytes each.
struct FixedList {
  std::vector<std::uint64_t>& values;
};
// A value of an enum from `first` to `last`.
template <class Enum>
struct Choice {
  Choice(Enum& field, Enum highest, std::string_view expectation, Enum lowest = Enum())
      : value(field), last(highest), expected(expectation), first(lowest) {}

  Enum& value;
  Enum last;
  std::string_view expected;  // "a closure's status"
  Enum first;
};

// Tensors follow each other beside the bytes, which have only their number. Thread-compatible. Many
// methods because each type of a field has its own.
class FieldWriter {
 public:
  static constexpr bool kReads = false;

  template <class... Fields>
  void operator()(Fields&&... fields) {
    (write(fields), ...);
  }
  // All tensors of a message that has no others: not even their number is written.
  void only_tensors(std::vector<at::Tensor>& tensors) { tensors_ = std::move(tensors); }

  // For what has a format of its own.
  ByteWriter& bytes() { return out_; }
  Bytes take_bytes() { return out_.take(); }
  std::vector<at::Tensor> take_tensors() { return std::move(tensors_); }

 private:
  void write(bool value) { out_.u8(value ? 1 : 0); }
  void write(std::uint8_t value) { out_.u8(value); }
  void write(std::uint32_t value) { out_.varint(value); }
  void write(std::uint64_t value) { out_.varint(value); }
  void write(std::int64_t value) { out_.zigzag(value); }
  void write(int value) { out_.zigzag(value); }
  void write(double value) { out_.f64(value); }
  void write(const std::string& value) { out_.text(value); }
  void write(Bytes& value) { out_.blob(value); }
  void write(Fixed field) { out_.u64(field.value); }
  void write(FixedList list) {
    out_.varint(list.values.size());
    for (const std::uint64_t value : list.values) out_.u64(value);
  }
  void write(const Error& value) { write_error(out_, value); }
  void write(at::ScalarType value) { out_.u8(static_cast<std::uint8_t>(value)); }
  template <class Enum>
  void write(const Choice<Enum>& field) {
    out_.u8(static_cast<std::uint8_t>(field.value));
  }
  template <class Rep, class Period>
  void write(const std::chrono::duration<Rep, Period>& value) {
    out_.zigzag(std::chrono::nanoseconds(value).count());
  }
  template <class T>
  void write(std::optional<T>& value) {
    write(value.has_value());
    if (value) write(*value);
  }
  template <class T>
  void write(std::vector<T>& values) {
    out_.varint(values.size());
    for (T& value : values) write(value);
  }
  void write(std::vector<at::Tensor>& tensors) {
    out_.varint(tensors.size());
    for (at::Tensor& tensor : tensors) write(tensor);
  }
  void write(at::Tensor& tensor) { tensors_.push_back(std::move(tensor)); }
  template <class Struct>
  requires requires(FieldWriter& codec, Struct& value) { fields(codec, value); }
  void write(Struct& value) { fields(*this, value); }

  ByteWriter out_;
  std::vector<at::Tensor> tensors_;
};

// Throws data_loss for bytes that no writer makes. Thread-compatible. Many methods because each
// type of a field has its own.
class FieldReader {
 public:
  static constexpr bool kReads = true;

  // `what` is for messages: "push message". `tensors`: those beside the bytes.
  FieldReader(std::span<const std::byte> bytes, std::string_view what,
              std::vector<at::Tensor> tensors = {})
      : in_(bytes, what), what_(what), tensors_(std::move(tensors)) {}

  template <class... Fields>
  void operator()(Fields&&... fields) {
    (read(fields), ...);
  }
  void only_tensors(std::vector<at::Tensor>& tensors) {
    tensors = std::move(tensors_);
    tensors_.clear();
    next_ = 0;
  }
  [[noreturn]] void fail(std::string_view expected) const { in_.fail(expected); }
  ByteReader& bytes() { return in_; }
  bool is_at_end() const { return in_.remaining() == 0; }
  void expect_end() const {
    in_.expect_end();
    if (next_ != tensors_.size()) fail_tensors(next_);
  }

 private:
  void read(bool& value) {
    const std::uint8_t byte = in_.u8();
    if (byte > 1) in_.fail("0 or 1");
    value = byte == 1;
  }
  void read(std::uint8_t& value) { value = in_.u8(); }
  void read(std::uint32_t& value) {
    const std::uint64_t number = in_.varint();
    if (number > std::numeric_limits<std::uint32_t>::max())
      in_.fail("an integer of at most 32 bits");
    value = static_cast<std::uint32_t>(number);
  }
  void read(std::uint64_t& value) { value = in_.varint(); }
  void read(std::int64_t& value) { value = in_.zigzag(); }
  void read(int& value) {
    const std::int64_t number = in_.zigzag();
    if (!std::in_range<int>(number)) in_.fail("an integer of 32 bits");
    value = static_cast<int>(number);
  }
  void read(double& value) { value = in_.f64(); }
  void read(std::string& value) { value = in_.text(); }
  void read(Bytes& value) {
    const std::span<const std::byte> bytes = in_.blob();
    value.assign(bytes.begin(), bytes.end());
  }
  void read(Fixed field) { field.value = in_.u64(); }
  void read(FixedList list) {
    list.values.resize(in_.count(sizeof(std::uint64_t)));
    for (std::uint64_t& value : list.values) value = in_.u64();
  }
  void read(at::ScalarType& value) { read(Choice(value, at::ScalarType::Undefined, "a dtype")); }
  template <class Enum>
  void read(const Choice<Enum>& field) {
    const std::uint8_t number = in_.u8();
    if (number < static_cast<std::uint8_t>(field.first) ||
        number > static_cast<std::uint8_t>(field.last))
      in_.fail(field.expected);
    field.value = static_cast<Enum>(number);
  }
  template <class Rep, class Period>
  void read(std::chrono::duration<Rep, Period>& value) {
    value = std::chrono::duration_cast<std::chrono::duration<Rep, Period>>(
        std::chrono::nanoseconds(in_.zigzag()));
  }
  void read(std::optional<Error>& value) {
    bool has_value = false;
    read(has_value);
    if (has_value) value = read_error(in_);
  }
  template <class T>
  void read(std::optional<T>& value) {
    bool has_value = false;
    read(has_value);
    if (!has_value) return;
    value = T();
    read(*value);
  }
  // Grows as items are read, since a count of broken bytes may be large.
  template <class T>
  void read(std::vector<T>& values) {
    values.clear();
    for (std::size_t left = in_.count(); left > 0; --left) read(values.emplace_back());
  }
  void read(std::vector<at::Tensor>& tensors) {
    const std::uint64_t count = in_.varint();
    if (count > tensors_.size() - next_) fail_tensors(next_ + count);
    tensors.clear();
    for (std::uint64_t i = 0; i < count; ++i) read(tensors.emplace_back());
  }
  void read(at::Tensor& tensor) {
    if (next_ == tensors_.size()) fail_tensors(next_ + 1);
    tensor = std::move(tensors_[next_++]);
  }
  template <class Struct>
  requires requires(FieldReader& codec, Struct& value) { fields(codec, value); }
  void read(Struct& value) { fields(*this, value); }
  [[noreturn]] void fail_tensors(std::uint64_t expected) const {
    internal::throw_error(ErrorCode::data_loss, "[core.bytes] broken ", what_, ": expected ",
                          expected, " tensors, got ", tensors_.size());
  }

  ByteReader in_;
  std::string what_;
  std::vector<at::Tensor> tensors_;
  std::size_t next_ = 0;
};

template <class Codec>
void fields(Codec& codec, TensorSpec& spec) {
  codec(spec.dtype, spec.sizes);
  if constexpr (Codec::kReads) {
    if (!spec.sizes) return;
    for (const std::int64_t size : *spec.sizes)
      if (size < -1) codec.fail("sizes of at least -1");
  }
}

template <class Codec>
void fields(Codec& codec, FileFingerprint& file) {
  codec(file.path, file.is_missing, file.size_bytes, file.modified_ns, file.checksum);
}

// The bytes of a struct without tensors, and the struct that they are; `what` is for messages.
template <class Struct>
Bytes encode_fields(const Struct& value) {
  FieldWriter out;
  out(const_cast<Struct&>(value));  // NOLINT: nothing but tensors is moved out of it
  return out.take_bytes();
}
template <class Struct>
Struct decode_fields(std::span<const std::byte> bytes, std::string_view what) {
  FieldReader in(bytes, what);
  Struct value;
  in(value);
  in.expect_end();
  return value;
}

}  // namespace cohort
