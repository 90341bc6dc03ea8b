// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/graph/graph_codec.h"

#include <algorithm>
#include <unordered_map>

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/data/functions/map_function.h"
#include "cohort/data/graph/attribute_reader.h"
#include "cohort/data/graph/nest_codec.h"
#include "cohort/data/ops/op_registry.h"
#include "cohort/function/prepared_program.h"

namespace cohort::data {
namespace {

constexpr std::uint8_t kMagic[] = {'C', 'H', 'D', 'S'};
constexpr std::uint8_t kVersion = 1;

// Appends inputs before their users, and each node once.
void list_nodes(const NodePtr& node, std::vector<NodePtr>& order,
                std::unordered_map<const Node*, std::size_t>& position) {
  if (position.contains(node.get())) return;
  for (const NodePtr& input : node->inputs()) list_nodes(input, order, position);
  position.emplace(node.get(), order.size());
  order.push_back(node);
}

std::vector<NodePtr> ops_of(const NodePtr& sink,
                            std::unordered_map<const Node*, std::size_t>& position) {
  std::vector<NodePtr> order;
  list_nodes(sink, order, position);
  return order;
}

NodePtr make_node(const Op& op, std::vector<NodePtr> inputs, const Attributes& attributes) {
  try {
    AttributeReader reader(op.name, attributes);
    NodePtr node = op.make({std::move(inputs), reader});
    reader.expect_all_read();
    return node;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::data_loss || error.code() == ErrorCode::unimplemented) throw;
    throw Error(ErrorCode::data_loss, error.message(), error.cause())
        .during("making op '" + std::string(op.name) + "' of a pipeline");
  }
}

NodePtr read_node(ByteReader& reader, const std::vector<NodePtr>& earlier,
                  const std::shared_ptr<ProgramSupply>& supply) {
  const std::string name = reader.text();
  std::vector<NodePtr> inputs;
  for (std::size_t left = reader.count(); left > 0; --left) {
    const std::uint64_t index = reader.varint();
    if (index >= earlier.size()) reader.fail("the number of an earlier op");
    inputs.push_back(earlier[index]);
  }
  const Nest attributes = read_nest(reader);
  if (attributes.kind() != Nest::Kind::map) reader.fail("a map of attributes");
  const Op& op = known_op(name);
  if (!op.takes(inputs.size())) reader.fail("the op's number of inputs");
  Attributes entries = attributes.entries();
  if (supply != nullptr) {
    add_source(name, std::make_shared<ProgramSource>(supply, std::to_string(earlier.size())),
               entries);
  }
  return make_node(op, std::move(inputs), entries);
}

// The attributes of the op at `position`; adds its position and name to an error.
Nest shipped_attributes(const std::vector<NodePtr>& order, std::size_t position) {
  try {
    return Nest::map(order[position]->attributes());
  } catch (...) {
    throw current_error().during("shipping op " + std::to_string(position + 1) + " of " +
                                 std::to_string(order.size()) + ", '" +
                                 std::string(order[position]->op()) + "', of the pipeline '" +
                                 order.back()->pipeline() + "'");
  }
}

// Whether one of a function's programs draws random numbers, which differ where the graph runs.
bool is_random(const Nest& programs) {
  return std::ranges::any_of(programs.items(), [](const Nest& program) {
    const std::string& bytes = program.text();
    return function::PreparedProgram::decode(std::as_bytes(std::span(bytes)))->info().is_random;
  });
}

}  // namespace

void add_external_state(std::string_view op, const Nest& attributes,
                        std::vector<std::string>& states) {
  const Nest::Map& entries = attributes.entries();
  if (op == "flat_map" || op == "interleave") {
    for (const Nest& step : entries.at("function").items()) {  // op, inputs, attributes
      add_external_state(step.items()[0].text(), step.items()[2], states);
    }
  }
  const bool may_draw = (op == "map" || op == "filter") && entries.contains("programs");
  if (!may_draw || !is_random(entries.at("programs"))) return;
  states.push_back("'" + entries.at("name").text() + "' of " + std::string(op) +
                   ", which draws random numbers");
}

std::vector<NodePtr> ops_of(const NodePtr& sink) {
  std::unordered_map<const Node*, std::size_t> position;
  return ops_of(sink, position);
}

// Used only from one thread.
class GraphWriter {
 public:
  explicit GraphWriter(std::size_t own_bytes_max) : own_bytes_max_(own_bytes_max) {}

  ByteWriter& bytes() { return writer_; }
  void write(const Nest& attributes) {
    write_nest(writer_, attributes, [this](const at::Tensor& tensor) { return leave_out(tensor); });
  }
  GraphBytes take() {
    made_.own_ = writer_.take();
    return std::move(made_);
  }

 private:
  bool leave_out(const at::Tensor& tensor) {
    const bool is_string = StringTensor::is(tensor);
    const bool is_dense = tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided &&
                          tensor.is_contiguous();
    if (!is_string && !is_dense) return false;
    const std::size_t size = byte_count(tensor);
    if (size < kLeftOutBytesMin || writer_.bytes().size() + size <= own_bytes_max_) return false;
    made_.left_out_.push_back({writer_.bytes().size(), tensor, std::nullopt});
    if (!is_string) made_.left_out_.back().frozen.emplace(tensor);
    return true;
  }
  static constexpr std::size_t kLeftOutBytesMin = std::size_t{4} << 10;

  const std::size_t own_bytes_max_;
  ByteWriter writer_;
  GraphBytes made_;
};

Bytes GraphBytes::joined() const {
  if (left_out_.empty()) return own_;
  Bytes all;
  std::size_t copied = 0;
  const auto copy_until = [&](std::size_t end) {
    all.insert(all.end(), own_.begin() + static_cast<std::ptrdiff_t>(copied),
               own_.begin() + static_cast<std::ptrdiff_t>(end));
    copied = end;
  };
  for (const auto& [offset, tensor, frozen] : left_out_) {
    COHORT_CHECK(!frozen || frozen->is_current(), ErrorCode::failed_precondition,
                 "[data.serialize] expected a dataset whose tensors are as they were when it was "
                 "given to the coordinator, got one that was written to since, ",
                 TensorSpec::of(tensor).to_string(), "; make the dataset from a clone()");
    copy_until(offset);
    ByteWriter writer;
    write_nest(writer, Nest(tensor));
    all.insert(all.end(), writer.bytes().begin(), writer.bytes().end());
  }
  copy_until(own_.size());
  return all;
}

bool GraphBytes::is_same(const GraphBytes& other) const {
  if (own_ != other.own_ || left_out_.size() != other.left_out_.size()) return false;
  const bool are_shared =
      std::equal(left_out_.begin(), left_out_.end(), other.left_out_.begin(),
                 [](const LeftOut& one, const LeftOut& two) {
                   return one.offset == two.offset && one.tensor.is_same(two.tensor);
                 });
  return are_shared || joined() == other.joined();
}

EncodedGraph encode_graph(const NodePtr& sink, std::size_t own_bytes_max) {
  EncodedGraph encoded;
  std::unordered_map<const Node*, std::size_t> position;
  const std::vector<NodePtr> order = ops_of(sink, position);
  FrozenTensors frozen;
  GraphWriter graph(own_bytes_max);
  ByteWriter& writer = graph.bytes();
  for (const std::uint8_t byte : kMagic) writer.u8(byte);
  writer.u8(kVersion);
  writer.varint(order.size());
  for (const NodePtr& node : order) {
    writer.text(node->op());
    writer.varint(node->inputs().size());
    for (const NodePtr& input : node->inputs()) writer.varint(position.at(input.get()));
    const Nest attributes = shipped_attributes(order, position.at(node.get()));
    add_external_state(node->op(), attributes, encoded.external_state);
    encoded.frozen.push_back(frozen.take());
    graph.write(attributes);
  }
  encoded.bytes = graph.take();
  return encoded;
}

NodePtr decode_graph(std::span<const std::byte> bytes,
                     const std::shared_ptr<ProgramSupply>& supply) {
  ByteReader reader(bytes, "pipeline");
  for (const std::uint8_t byte : kMagic) {
    if (reader.u8() != byte) reader.fail("a pipeline's magic");
  }
  if (reader.u8() != kVersion) reader.fail("version 1");
  std::vector<NodePtr> built;
  for (std::size_t left = reader.count(4); left > 0; --left) {
    built.push_back(read_node(reader, built, supply));
  }
  reader.expect_end();
  if (built.empty()) reader.fail("at least one op");
  return built.back();
}

}  // namespace cohort::data
