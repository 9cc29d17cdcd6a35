/* streams.c: streams, events, capture and graphs: the driver's, under the runtime's names.
 *
 * Knows: the pairs of names. Must not know: anything else. The objects are the driver's own.
 */
#include "runtime.h"

/* ---- streams
   ----------------------------------------------------------------------------- */

NM_IN_CONTEXT(cudaStreamCreate, (cudaStream_t * out), cuStreamCreate(out, CU_STREAM_DEFAULT))
NM_IN_CONTEXT(cudaStreamCreateWithFlags, (cudaStream_t * out, unsigned flags),
              cuStreamCreate(out, flags))
NM_IN_CONTEXT(cudaStreamCreateWithPriority, (cudaStream_t * out, unsigned flags, int priority),
              cuStreamCreateWithPriority(out, flags, priority))
NM_IN_CONTEXT(cudaStreamDestroy, (cudaStream_t stream), cuStreamDestroy(stream))
NM_IN_CONTEXT(cudaStreamSynchronize, (cudaStream_t stream), cuStreamSynchronize(stream))
NM_IN_CONTEXT(cudaStreamQuery, (cudaStream_t stream), cuStreamQuery(stream))
NM_IN_CONTEXT(cudaStreamGetPriority, (cudaStream_t stream, int *out),
              cuStreamGetPriority(stream, out))
NM_IN_CONTEXT(cudaStreamGetFlags, (cudaStream_t stream, unsigned *out),
              cuStreamGetFlags(stream, out))
NM_IN_CONTEXT(cudaStreamGetId, (cudaStream_t stream, unsigned long long *out),
              cuStreamGetId(stream, out))
NM_IN_CONTEXT(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags),
              cuStreamWaitEvent(stream, event, flags))
NM_IN_CONTEXT(cudaStreamAddCallback,
              (cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned flags),
              cuStreamAddCallback(stream, (CUstreamCallback)callback, data, flags))
NM_IN_CONTEXT(cudaLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t function, void *data),
              cuLaunchHostFunc(stream, function, data))

/* ---- events
   ----------------------------------------------------------------------------- */

NM_IN_CONTEXT(cudaEventCreate, (cudaEvent_t * out), cuEventCreate(out, CU_EVENT_DEFAULT))
NM_IN_CONTEXT(cudaEventCreateWithFlags, (cudaEvent_t * out, unsigned flags),
              cuEventCreate(out, flags))
NM_IN_CONTEXT(cudaEventDestroy, (cudaEvent_t event), cuEventDestroy(event))
NM_IN_CONTEXT(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream),
              cuEventRecord(event, stream))
NM_IN_CONTEXT(cudaEventRecordWithFlags, (cudaEvent_t event, cudaStream_t stream, unsigned flags),
              cuEventRecordWithFlags(event, stream, flags))
NM_IN_CONTEXT(cudaEventSynchronize, (cudaEvent_t event), cuEventSynchronize(event))
NM_IN_CONTEXT(cudaEventQuery, (cudaEvent_t event), cuEventQuery(event))
NM_IN_CONTEXT(cudaEventElapsedTime, (float *out, cudaEvent_t start, cudaEvent_t end),
              cuEventElapsedTime(out, start, end))

/* ---- capture
   ----------------------------------------------------------------------------- */

NM_IN_CONTEXT(cudaStreamBeginCapture, (cudaStream_t stream, enum cudaStreamCaptureMode mode),
              cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode))
NM_IN_CONTEXT(cudaStreamBeginCaptureToGraph,
              (cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *after,
               const cudaGraphEdgeData *edges, size_t count, enum cudaStreamCaptureMode mode),
              cuStreamBeginCaptureToGraph(stream, graph, after, (const CUgraphEdgeData *)edges,
                                          count, (CUstreamCaptureMode)mode))
NM_IN_CONTEXT(cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t *out),
              cuStreamEndCapture(stream, out))
NM_IN_CONTEXT(cudaStreamIsCapturing, (cudaStream_t stream, enum cudaStreamCaptureStatus *out),
              cuStreamIsCapturing(stream, (CUstreamCaptureStatus *)out))
NM_IN_CONTEXT(cudaStreamGetCaptureInfo,
              (cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
               cudaGraph_t *graph, const cudaGraphNode_t **after, const cudaGraphEdgeData **edges,
               size_t *count),
              cuStreamGetCaptureInfo(stream, (CUstreamCaptureStatus *)status, (cuuint64_t *)id,
                                     graph, after, (const CUgraphEdgeData **)edges, count))
NM_IN_CONTEXT(cudaStreamUpdateCaptureDependencies,
              (cudaStream_t stream, cudaGraphNode_t *after, const cudaGraphEdgeData *edges,
               size_t count, unsigned flags),
              cuStreamUpdateCaptureDependencies(stream, after, (const CUgraphEdgeData *)edges,
                                                count, flags))
NM_IN_CONTEXT(cudaThreadExchangeStreamCaptureMode, (enum cudaStreamCaptureMode * mode),
              cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode))

/* ---- graphs
   ----------------------------------------------------------------------------- */

NM_IN_CONTEXT(cudaGraphCreate, (cudaGraph_t * out, unsigned flags), cuGraphCreate(out, flags))
NM_IN_CONTEXT(cudaGraphDestroy, (cudaGraph_t graph), cuGraphDestroy(graph))
NM_IN_CONTEXT(cudaGraphGetNodes, (cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count),
              cuGraphGetNodes(graph, nodes, count))
NM_IN_CONTEXT(cudaGraphNodeGetDependencies,
              (cudaGraphNode_t node, cudaGraphNode_t *after, cudaGraphEdgeData *edges,
               size_t *count),
              cuGraphNodeGetDependencies(node, after, (CUgraphEdgeData *)edges, count))
NM_IN_CONTEXT(cudaGraphInstantiate,
              (cudaGraphExec_t * out, cudaGraph_t graph, unsigned long long flags),
              cuGraphInstantiateWithFlags(out, graph, flags))
NM_IN_CONTEXT(cudaGraphInstantiateWithFlags,
              (cudaGraphExec_t * out, cudaGraph_t graph, unsigned long long flags),
              cuGraphInstantiateWithFlags(out, graph, flags))
NM_IN_CONTEXT(cudaGraphUpload, (cudaGraphExec_t exec, cudaStream_t stream),
              cuGraphUpload(exec, stream))
NM_IN_CONTEXT(cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t stream),
              cuGraphLaunch(exec, stream))
NM_IN_CONTEXT(cudaGraphExecDestroy, (cudaGraphExec_t exec), cuGraphExecDestroy(exec))
NM_IN_CONTEXT(cudaGraphRetainUserObject,
              (cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags),
              cuGraphRetainUserObject(graph, object, count, flags))
NM_IN_CONTEXT(cudaUserObjectCreate,
              (cudaUserObject_t * out, void *pointer, cudaHostFn_t destroy, unsigned count,
               unsigned flags),
              cuUserObjectCreate(out, pointer, destroy, count, flags))
NM_IN_CONTEXT(cudaUserObjectRelease, (cudaUserObject_t object, unsigned count),
              cuUserObjectRelease(object, count))
NM_AFTER_INIT(cudaDeviceGraphMemTrim, (int device), cuDeviceGraphMemTrim(device))
NM_AFTER_INIT(cudaDeviceGetGraphMemAttribute,
              (int device, enum cudaGraphMemAttributeType which, void *value),
              cuDeviceGetGraphMemAttribute(device, (CUgraphMem_attribute)which, value))
NM_AFTER_INIT(cudaDeviceSetGraphMemAttribute,
              (int device, enum cudaGraphMemAttributeType which, void *value),
              cuDeviceSetGraphMemAttribute(device, (CUgraphMem_attribute)which, value))
