// SPDX-License-Identifier: Apache-2.0
#include <ATen/EmptyTensor.h>

#include <cstring>
#include <limits>

#include "cohort/core/error.h"
#include "cohort/core/torch_error.h"
#include "cohort/function/program/wire.h"
#include "cohort/function/program/wire_format.h"

namespace cohort::function {
namespace {

using Kind = Arg::Kind;

// Reads one program; memory stays within a small multiple of the bytes given. Used only inside
// decode_program().
class ProgramReader {
 public:
  explicit ProgramReader(std::span<const std::byte> bytes) : in_(bytes, "program") {}

  Program read() {
    header();
    op_names();
    interface();
    for (std::size_t n = in_.count(4); n > 0; --n) program_.constants.push_back(constant());
    for (std::size_t n = in_.count(4); n > 0; --n) program_.ops.push_back(op());
    for (std::size_t n = in_.count(); n > 0; --n) program_.outputs.push_back(optional_id());
    in_.expect_end();
    return std::move(program_);
  }

 private:
  void header() {
    for (const char c : wire::kMagic) {
      if (in_.u8() != static_cast<std::uint8_t>(c)) in_.fail("the magic CHFN");
    }
    if (in_.u8() != wire::kVersion) in_.fail("version 2");
    program_.is_random = flags(wire::kProgramIsRandom) != 0;
    program_.producer = in_.text();
    // The definition of every value takes at least one byte.
    program_.value_count = static_cast<int>(in_.count());
  }

  void op_names() {
    for (std::size_t n = in_.count(); n > 0; --n) {
      const std::string text = in_.text();
      if (text.size() > wire::kNameBytesMax) in_.fail("an operator name of at most 128 bytes");
      const std::size_t split = text.find('\n');
      if (split == std::string::npos) in_.fail("an operator name and overload");
      names_.emplace_back(text.substr(0, split), text.substr(split + 1));
    }
  }

  void interface() {
    for (std::size_t n = in_.count(3); n > 0; --n) {
      const int input_id = id();
      program_.inputs.push_back({input_id, spec()});
    }
    for (std::size_t n = in_.count(5); n > 0; --n) {
      ProgramVariable variable;
      variable.id = id();
      variable.name = in_.text();
      variable.spec = spec();
      const std::uint8_t bits = flags(wire::kVariableIsRead | wire::kVariableIsHandleOnly);
      variable.is_read = (bits & wire::kVariableIsRead) != 0;
      variable.is_handle_only = (bits & wire::kVariableIsHandleOnly) != 0;
      program_.variables.push_back(std::move(variable));
    }
    for (std::size_t n = in_.count(); n > 0; --n) {
      ProgramDraw& draw = program_.draws.emplace_back();
      for (std::size_t m = in_.count(2); m > 0; --m) draw.fields.push_back(spec());
    }
  }

  std::uint8_t flags(std::uint8_t known) {
    const std::uint8_t bits = in_.u8();
    if ((bits & ~known) != 0) in_.fail("flags of version 2");
    return bits;
  }

  int id() {
    const std::uint64_t value = in_.varint();
    if (value >= static_cast<std::uint64_t>(program_.value_count))
      in_.fail("a value of this program");
    return static_cast<int>(value);
  }

  int optional_id() {
    const std::uint64_t value = in_.varint();
    if (value > static_cast<std::uint64_t>(program_.value_count))
      in_.fail("a value of this program");
    return static_cast<int>(value) - 1;
  }

  TensorSpec spec() {
    TensorSpec made;
    made.dtype = static_cast<at::ScalarType>(in_.u8());
    if (!wire::is_portable(made.dtype)) in_.fail("a plain dtype");
    const std::size_t rank = in_.count();
    if (rank > wire::kRankMax) in_.fail("a rank of at most 64");
    made.sizes.emplace();
    // Strides are products of sizes with empty dimensions counted as one: none of them may
    // overflow.
    auto extent = static_cast<std::int64_t>(c10::elementSize(made.dtype));
    for (std::size_t i = 0; i < rank; ++i) {
      const std::uint64_t size = in_.varint();
      if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ||
          __builtin_mul_overflow(extent, std::max<std::int64_t>(static_cast<std::int64_t>(size), 1),
                                 &extent)) {
        in_.fail("sizes whose product fits 63 bits");
      }
      made.sizes->push_back(static_cast<std::int64_t>(size));
    }
    return made;
  }

  ProgramConstant constant() {
    ProgramConstant made;
    made.id = id();
    const TensorSpec shape = spec();
    made.is_wrapped_number = flags(wire::kConstantIsWrapped) != 0;
    const std::span<const std::byte> data = in_.blob();
    if (static_cast<std::int64_t>(data.size()) != shape.byte_count()) {
      in_.fail("as many bytes as the constant's sizes say");
    }
    if (made.is_wrapped_number && !shape.sizes->empty())
      in_.fail("a wrapped number without dimensions");
    if (shape.dtype == at::kBool) {
      for (const std::byte byte : data) {
        if (byte > std::byte{1}) in_.fail("booleans of 0 or 1");
      }
    }
    made.value = at::detail::empty_cpu(*shape.sizes, shape.dtype);
    if (!data.empty()) std::memcpy(made.value.data_ptr(), data.data(), data.size());
    return made;
  }

  Op op() {
    const std::uint64_t name = in_.varint();
    if (name >= names_.size()) in_.fail("an operator of the name table");
    Op made;
    made.name = names_[name].first;
    made.overload = names_[name].second;
    made.flags = flags(wire::kOpFlags);
    const std::size_t arguments = in_.count();
    if (arguments > wire::kArgumentsMax) in_.fail("at most 255 arguments");
    for (std::size_t i = 0; i < arguments; ++i) made.args.push_back(argument());
    for (std::size_t n = in_.count(2); n > 0; --n) {
      Out& out = made.outs.emplace_back();
      out.is_list = flags(1) != 0;
      for (std::size_t m = in_.count(); m > 0; --m) out.ids.push_back(optional_id());
    }
    return made;
  }

  Arg argument() {
    Arg made;
    made.kind = static_cast<Kind>(in_.u8());
    switch (made.kind) {
      case Kind::none:
        break;
      case Kind::value:
        made.id = id();
        break;
      case Kind::values:
        for (std::size_t n = in_.count(); n > 0; --n) made.ids.push_back(optional_id());
        break;
      case Kind::text:
        made.constant = in_.text();
        break;
      case Kind::device:
        made.constant = device();
        break;
      case Kind::integers:
        made.constant = in_.sizes();
        break;
      case Kind::reals:
        made.constant = reals();
        break;
      case Kind::booleans:
        made.constant = booleans();
        break;
      case Kind::scalars:
        made.constant = scalars();
        break;
      default:
        made.constant = number(made.kind);
    }
    return made;
  }

  c10::IValue number(Kind kind) {
    switch (kind) {
      case Kind::integer:
        return in_.zigzag();
      case Kind::real:
        return in_.f64();
      case Kind::boolean_false:
        return false;
      case Kind::boolean_true:
        return true;
      case Kind::complex: {
        const double real = in_.f64();
        return c10::complex<double>(real, in_.f64());
      }
      default:
        in_.fail("an argument kind of version 2");
    }
  }

  c10::IValue device() {
    const auto type = static_cast<c10::DeviceType>(in_.u8());
    const std::int64_t index = in_.zigzag();
    const bool is_cpu = type == c10::DeviceType::CPU;
    if (!is_cpu && type != c10::DeviceType::CUDA) in_.fail("a CPU or CUDA device");
    if (index < -1 || index > (is_cpu ? 0 : 127)) in_.fail("a device index");
    return c10::Device(type, static_cast<c10::DeviceIndex>(index));
  }

  c10::List<double> reals() {
    c10::List<double> values;
    for (std::size_t n = in_.count(8); n > 0; --n) values.push_back(in_.f64());
    return values;
  }

  c10::List<bool> booleans() {
    c10::List<bool> values;
    for (std::size_t n = in_.count(); n > 0; --n) values.push_back(flags(1) != 0);
    return values;
  }

  c10::List<at::Scalar> scalars() {
    c10::List<at::Scalar> values;
    for (std::size_t n = in_.count(); n > 0; --n) {
      const auto kind = static_cast<Kind>(in_.u8());
      values.push_back(number(kind).toScalar());
    }
    return values;
  }

  ByteReader in_;
  Program program_;
  std::vector<std::pair<std::string, std::string>> names_;
};

}  // namespace

Program decode_program(std::span<const std::byte> bytes) {
  COHORT_CHECK(bytes.size() <= wire::kProgramBytesMax, ErrorCode::data_loss,
               "[function.decode] expected a program of at most ", wire::kProgramBytesMax,
               " bytes, got ", bytes.size());
  Program program;
  try {
    program = ProgramReader(bytes).read();
  } catch (const c10::Error& error) {
    const Error plain = error_of_torch(error, ErrorCode::data_loss);
    const bool is_broken = plain.code() == ErrorCode::data_loss;
    throw Error(plain.code(), std::string("[function.decode] ") +
                                  (is_broken ? "broken program: " : "") + plain.message());
  }
  verify(program);
  return program;
}

}  // namespace cohort::function
