"""Strangers, and what they send: every decoder fuzzed from a kept corpus, and a broker tried from outside.

mutator, corpus    how inputs are made of kept ones, and which new ones are kept
target             what is fuzzed: how to try it, which errors it documents
*_targets          the decoders, by where their bytes come from
fuzz               the part that drives targets
requests           whole requests at a running broker
access             TLS and accounts, tried by peers who have no right
grpc_calls         the same of calls of gRPC, and of peers without a right there
paths              names and addresses that would lead out of a directory
bombs              small bodies that claim to be huge
floods             many peers that ask for much and take little
secrets            marked secrets through failing flows, looked for in everything that is written
part               all of them as parts of the campaign
"""
