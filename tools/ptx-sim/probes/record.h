// What a recorded launch is made of, and the containers it is written to.
#pragma once
#include <stdint.h>

#include <map>
#include <string>
#include <vector>

typedef std::vector<uint8_t> Bytes;

struct Tensor {
    unsigned elem = 1;  // bytes per element: 1, 2, 4, 8
    Bytes data;
};

struct Buffer {
    std::string name;
    size_t bytes = 0;
    std::string init;  // name of the tensor it starts as, or empty
    uint8_t fill = 0;  // otherwise every byte is this
    unsigned elem = 4;
    bool out = false;
};

// The arguments of cuTensorMapEncodeTiled, by their numbers.
struct Map {
    unsigned type = 0, rank = 0;
    unsigned buffer = 0;
    uint64_t offset = 0;
    uint64_t dims[5] = {1, 1, 1, 1, 1};
    uint64_t strides[4] = {0, 0, 0, 0};  // bytes, of dimension 1 and up
    uint32_t box[5] = {1, 1, 1, 1, 1};
    uint32_t elem_strides[5] = {1, 1, 1, 1, 1};
    unsigned interleave = 0, swizzle = 0, l2 = 0, oob = 0;
};

struct Param {
    enum Kind { BUFFER, U32, MAP } kind = U32;
    unsigned buffer = 0;
    uint32_t value = 0;
    Map map;
};

struct Case {
    std::string name, entry;
    unsigned grid[3] = {1, 1, 1}, block[3] = {32, 1, 1}, cluster[3] = {0, 0, 0};
    unsigned smem = 0;
    std::vector<Buffer> buffers;
    std::vector<Param> params;
    std::vector<std::string> tags;
    // Launched before, with the same parameters; then `entry` depends on it (programmatic dependent launch).
    std::string first;
    bool encode_only = false;  // no launch: only the result of cuTensorMapEncodeTiled

    // Filled in by the recorder.
    std::string status = "not run";
    int encode_result = -1;
    bool repeatable = false;

    unsigned buf(Buffer b) {
        buffers.push_back(b);
        return (unsigned)buffers.size() - 1;
    }
    Case& in(const std::string& name, const std::string& tensor, size_t bytes, unsigned elem);
    Case& out(const std::string& name, size_t bytes, unsigned elem = 4, uint8_t fill = 0xA5);
    Case& inout(const std::string& name, const std::string& tensor, size_t bytes, unsigned elem);
    Case& u32(uint32_t v);
    Case& tag(const std::string& t) {
        tags.push_back(t);
        return *this;
    }
};

struct Topic {
    std::string name;  // also the name of its PTX file
    int needs = 0;     // major compute capability; 0: any since 9
    std::map<std::string, Tensor> tensors;
    std::vector<Case> cases;

    // Shared inputs, made on first use: returns the tensor's name.
    std::string shared(const std::string& set, unsigned column);
    size_t bytes(const std::string& tensor) const { return tensors.at(tensor).data.size(); }
    unsigned elem(const std::string& tensor) const { return tensors.at(tensor).elem; }
    // An input of one case.
    std::string own(const std::string& name, const std::vector<uint32_t>& words);
    Case& add(const std::string& name, const std::string& entry);
};

struct Column {
    unsigned elem;
    Bytes data;
};
// The columns of an input set.
std::vector<Column> make_set(const std::string& name);

// The case list.
std::vector<Topic> all_topics();
// Those of blackwell.cpp.
void blackwell_topics(std::vector<Topic>& to);
